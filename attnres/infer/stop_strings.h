// Where a text that comes in pieces ends: at the first of some strings.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace attnres {

// The first is the one that is complete first and, of those complete at the same byte, the longest.
// It may begin in one piece and end in another: what is found does not depend on the pieces. Takes
// time in proportion to the text and the strings, whatever they are.
class StopStrings {
 public:
  // No strings let every text pass. Throws UsageError, "stop: ", on an empty string and on one that
  // is not valid UTF-8.
  explicit StopStrings(const std::vector<std::string>& strings);

  // What of the text so far, which has this piece now, is new and cannot be part of a stop string:
  // valid UTF-8 if the pieces are. With a stop string complete, the text before it; nothing then.
  std::string add(std::string_view piece);
  // The text has ended: what was still held back.
  std::string finish();

  bool found() const { return found_; }

 private:
  // A string, and how much of it the end of the text is (Knuth, Morris and Pratt).
  struct Matcher {
    std::string string;
    std::vector<size_t> fallback;  // for each length, the next shorter one that may match too
    size_t length = 0;
  };

  // The longest string that is complete with this byte; 0 for none.
  size_t advance(char byte);
  // The end of the text that may become a stop string.
  std::string_view held() const;

  std::vector<Matcher> matchers_;
  bool found_ = false;
};

}  // namespace attnres
