#include "attnres/text/utf8.h"

#include "attnres/support/error.h"

namespace attnres {

Utf8Step utf8_step(std::string_view text) {
  const auto byte = [text](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {Utf8Step::Kind::character, 1};
  if (lead < 0xc2 || lead > 0xf4) return {Utf8Step::Kind::invalid, 1};
  const size_t length = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  // The second byte's range excludes overlong forms, surrogates and what lies above U+10FFFF.
  unsigned char low = 0x80, high = 0xbf;
  if (lead == 0xe0) low = 0xa0;
  if (lead == 0xed) high = 0x9f;
  if (lead == 0xf0) low = 0x90;
  if (lead == 0xf4) high = 0x8f;
  for (size_t i = 1; i < length; ++i) {
    if (i == text.size()) return {Utf8Step::Kind::incomplete, i};
    if (byte(i) < low || byte(i) > high) return {Utf8Step::Kind::invalid, i};
    low = 0x80;
    high = 0xbf;
  }
  return {Utf8Step::Kind::character, length};
}

size_t first_invalid_utf8(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const Utf8Step step = utf8_step(text.substr(at));
    if (step.kind != Utf8Step::Kind::character) break;
    at += step.bytes;
  }
  return at;
}

void require_utf8(std::string_view text, std::string_view what, size_t start) {
  const size_t at = first_invalid_utf8(text);
  if (at == text.size()) return;
  fail("{}: not UTF-8 text at byte {} (0x{:02x}); convert it to UTF-8, or use the byte tokenizer",
       what, start + at, static_cast<unsigned char>(text[at]));
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const Utf8Step step = utf8_step(text);
    if (step.kind == Utf8Step::Kind::character) {
      out += text.substr(0, step.bytes);
    } else {
      out += "\uFFFD";
    }
    text.remove_prefix(step.bytes);
  }
  return out;
}

}  // namespace attnres
