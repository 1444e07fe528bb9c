#include "attnres/support/format.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

namespace attnres {
namespace {

// The value in the largest unit that leaves 1 or more of it: "1.2M". Whole numbers of the smallest.
std::string scaled(double value, double step, std::span<const std::string_view> units,
                   std::string_view separator) {
  size_t unit = 0;
  // 999.95 would be printed as 1000.0.
  while (unit + 1 < units.size() && std::abs(value) >= step - (unit > 0 ? 0.05 : 0.5)) {
    value /= step;
    ++unit;
  }
  return fmt::format("{:.{}f}{}{}", value, unit == 0 ? 0 : 1, separator, units[unit]);
}

}  // namespace

std::string format_duration(double seconds) {
  if (!(std::abs(seconds) < 0x1p63)) return "?";
  // Each limit is where rounding would reach the next form: no "60s", no "1000ms".
  if (seconds < 0.9995) return fmt::format("{:.0f}ms", seconds * 1e3);
  if (seconds < 9.95) return fmt::format("{:.1f}s", seconds);
  const int64_t whole = std::llround(seconds);
  if (whole < 60) return fmt::format("{}s", whole);
  if (whole < 3600) return fmt::format("{}m{:02}s", whole / 60, whole % 60);
  const int64_t minutes = whole / 60, hours = minutes / 60;
  if (hours < 24) return fmt::format("{}h{:02}m", hours, minutes % 60);
  return fmt::format("{}d{:02}h", hours / 24, hours % 24);
}

std::string format_count(double count) {
  static constexpr std::array<std::string_view, 5> kUnits = {"", "K", "M", "B", "T"};
  return scaled(count, 1000, kUnits, "");
}

std::string format_rate(double per_second, std::string_view unit) {
  return fmt::format("{} {}/s", format_count(per_second), unit);
}

std::string counted(int64_t count, std::string_view noun) {
  if (count == 1) return fmt::format("1 {}", noun);
  const bool has_y = noun.size() > 1 && noun.ends_with('y') &&
                     std::string_view("aeiou").find(noun[noun.size() - 2]) == noun.npos;
  if (has_y) return fmt::format("{} {}ies", count, noun.substr(0, noun.size() - 1));
  return fmt::format("{} {}{}", count, noun, noun.ends_with('s') ? "es" : "s");
}

std::string format_bytes(double bytes) {
  static constexpr std::array<std::string_view, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  return scaled(bytes, 1024, kUnits, " ");
}

std::string one_line(std::string_view text) {
  constexpr size_t kMostBytes = 120;
  size_t end = std::min(text.size(), kMostBytes);
  const auto in_character = [&](size_t at) {
    return at < text.size() && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80;
  };
  while (end > 0 && in_character(end)) --end;
  std::string line(text.substr(0, end));
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < ' ' || c == 0x7f) c = ' ';
  }
  return end < text.size() ? line + "..." : line;
}

}  // namespace attnres
