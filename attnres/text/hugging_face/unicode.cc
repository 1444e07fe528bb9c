#include "attnres/text/hugging_face/unicode.h"

#include <unicode/uchar.h>
#include <unicode/utf8.h>

#include <cctype>

namespace attnres {
namespace {

// Characters that are of another category since the tables of those libraries were made.
constexpr int32_t kCanadianChiSign = 0x166d, kSharadaSandhiMark = 0x111c9;
constexpr int32_t kVedicArdhavisarga = 0x1cf2, kRotatedVedicArdhavisarga = 0x1cf3;

// Whether Unicode had a character by its version `version`.0.
bool came_by(int32_t code, uint8_t version) {
  UVersionInfo age;
  u_charAge(code, age);
  return age[0] < version || (age[0] == version && age[1] == 0);
}

}  // namespace

Character first_character(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xe0) return {(lead & 0x1f) << 6 | (byte(1) & 0x3f), 2};
  if (lead < 0xf0) {
    return {(lead & 0x0f) << 12 | (byte(1) & 0x3f) << 6 | (byte(2) & 0x3f), 3};
  }
  return {(lead & 0x07) << 18 | (byte(1) & 0x3f) << 12 | (byte(2) & 0x3f) << 6 | (byte(3) & 0x3f),
          4};
}

Character last_character(std::string_view text) {
  size_t begin = text.size() - 1;
  while ((static_cast<uint8_t>(text[begin]) & 0xc0) == 0x80) --begin;
  return first_character(text.substr(begin));
}

void append_utf8(int32_t code, std::string& text) {
  char bytes[U8_MAX_LENGTH];
  int32_t count = 0;
  U8_APPEND_UNSAFE(bytes, count, code);
  text.append(bytes, count);
}

bool is_whitespace(int32_t code) {
  return u_isUWhiteSpace(code) != 0;
}

bool is_word_character(int32_t code) {
  constexpr uint32_t kMasks = U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK;
  return (U_MASK(u_charType(code)) & kMasks) != 0 || u_hasBinaryProperty(code, UCHAR_ALPHABETIC) ||
         u_hasBinaryProperty(code, UCHAR_JOIN_CONTROL);
}

bool is_numeric(int32_t code) {
  return (U_MASK(u_charType(code)) & U_GC_N_MASK) != 0;
}

bool is_punctuation(int32_t code) {
  if (code < 0x80) return std::ispunct(code) != 0;
  if (code == kCanadianChiSign || code == kSharadaSandhiMark) return true;
  return (U_MASK(u_charType(code)) & U_GC_P_MASK) != 0 && came_by(code, 8);
}

bool is_combining_mark(int32_t code) {
  if (code == kSharadaSandhiMark) return false;
  if (code == kVedicArdhavisarga || code == kRotatedVedicArdhavisarga) return true;
  return (U_MASK(u_charType(code)) & U_GC_M_MASK) != 0 && came_by(code, 9);
}

}  // namespace attnres
