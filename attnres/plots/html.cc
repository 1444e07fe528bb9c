#include "attnres/plots/html.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace attnres {
namespace {

constexpr const char* kReplacement = "\xEF\xBF\xBD";  // U+FFFD
constexpr const char* kMinus = "\xE2\x88\x92";        // U+2212

// Length of the well-formed UTF-8 character that `text` begins with (Unicode 15, table 3-7); 0 if
// there is none.
size_t utf8_length(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? uint8_t(text[i]) : uint8_t{0}; };
  const auto within = [&](size_t i, int low, int high) {
    return byte(i) >= low && byte(i) <= high;
  };
  const uint8_t first = byte(0);
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return within(1, 0x80, 0xBF) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    const int low = first == 0xE0 ? 0xA0 : 0x80;
    const int high = first == 0xED ? 0x9F : 0xBF;
    return within(1, low, high) && within(2, 0x80, 0xBF) ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    const int low = first == 0xF0 ? 0x90 : 0x80;
    const int high = first == 0xF4 ? 0x8F : 0xBF;
    return within(1, low, high) && within(2, 0x80, 0xBF) && within(3, 0x80, 0xBF) ? 4 : 0;
  }
  return 0;
}

void append_ascii(std::string& out, char c) {
  constexpr std::pair<char, const char*> kEntities[] = {
      {'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'"', "&quot;"}, {'\'', "&#39;"}};
  for (const auto& [plain, entity] : kEntities) {
    if (c == plain) {
      out += entity;
      return;
    }
  }
  const bool is_control = (uint8_t(c) < 0x20 && c != '\t' && c != '\n') || c == 0x7F;
  out += is_control ? std::string_view(kReplacement) : std::string_view(&c, 1);
}

}  // namespace

std::string escape_html(std::string_view text) {
  std::string out;
  out.reserve(text.size() + text.size() / 8);
  while (!text.empty()) {
    const size_t length = utf8_length(text);
    if (length == 0) {
      out += kReplacement;
    } else if (length == 1) {
      append_ascii(out, text[0]);
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  return out;
}

std::string format_whole(int64_t n) {
  std::string digits = std::to_string(n);
  const int first = n < 0 ? 1 : 0;
  for (int i = int(digits.size()) - 3; i > first; i -= 3) digits.insert(size_t(i), 1, ',');
  return digits;
}

std::string format_loss(double loss, bool sign, int decimals) {
  if (std::abs(loss) < 0.5 * std::pow(10, -decimals)) loss = 0;
  const char* prefix = loss < 0 ? kMinus : sign && loss > 0 ? "+" : "";
  return fmt::format("{}{:.{}f}", prefix, std::abs(loss), decimals);
}

std::string format_p_value(double p) {
  return p < 0.001 ? "< 0.001" : fmt::format("{:.3f}", p);
}

}  // namespace attnres
