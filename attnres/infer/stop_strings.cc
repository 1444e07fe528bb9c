#include "attnres/infer/stop_strings.h"

#include <algorithm>

#include "attnres/support/error.h"
#include "attnres/text/utf8.h"

namespace attnres {
namespace {

// The length of the string's beginning that is matched when `byte` follows `length` bytes of it.
size_t next_length(const std::string& string, const std::vector<size_t>& fallback, size_t length,
                   char byte) {
  while (length > 0 && (length == string.size() || string[length] != byte)) {
    length = fallback[length];
  }
  return string[length] == byte ? length + 1 : 0;
}

std::vector<size_t> fallbacks(const std::string& string) {
  std::vector<size_t> fallback(string.size() + 1, 0);
  for (size_t length = 1; length < string.size(); ++length) {
    fallback[length + 1] = next_length(string, fallback, fallback[length], string[length]);
  }
  return fallback;
}

// The first bytes of two texts, one after the other.
std::string first_bytes(std::string_view one, std::string_view other, size_t count) {
  std::string first(one.substr(0, count));
  if (count > one.size()) first += other.substr(0, count - one.size());
  return first;
}

}  // namespace

StopStrings::StopStrings(const std::vector<std::string>& strings) {
  for (const std::string& string : strings) {
    require_usage(!string.empty(), "stop: expected a text, got an empty one");
    require_usage(first_invalid_utf8(string) == string.size(),
                  "stop: expected valid UTF-8, which this is not from byte {} on",
                  first_invalid_utf8(string));
    matchers_.push_back({string, fallbacks(string)});
  }
}

std::string StopStrings::add(std::string_view piece) {
  if (found_) return "";
  const std::string_view before = held();
  for (size_t i = 0; i < piece.size(); ++i) {
    const size_t complete = advance(piece[i]);
    if (complete == 0) continue;
    found_ = true;
    return first_bytes(before, piece, before.size() + i + 1 - complete);
  }
  return first_bytes(before, piece, before.size() + piece.size() - held().size());
}

std::string StopStrings::finish() {
  if (found_) return "";
  std::string rest(held());
  for (Matcher& matcher : matchers_) matcher.length = 0;
  return rest;
}

size_t StopStrings::advance(char byte) {
  size_t longest = 0;
  for (Matcher& matcher : matchers_) {
    matcher.length = next_length(matcher.string, matcher.fallback, matcher.length, byte);
    if (matcher.length == matcher.string.size()) longest = std::max(longest, matcher.length);
  }
  return longest;
}

std::string_view StopStrings::held() const {
  std::string_view longest;
  for (const Matcher& matcher : matchers_) {
    if (matcher.length > longest.size()) longest = {matcher.string.data(), matcher.length};
  }
  return longest;
}

}  // namespace attnres
