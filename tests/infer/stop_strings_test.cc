#include "attnres/infer/stop_strings.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "attnres/support/error.h"
#include "attnres/support/random.h"

namespace attnres::stop_strings_test {
namespace {

using Strings = std::vector<std::string>;

struct Ended {
  std::string text;
  bool found = false;

  bool operator==(const Ended&) const = default;
};

// Looks at every end of the text, for every string.
Ended naive(const std::string& text, const Strings& stops) {
  for (size_t end = 0; end <= text.size(); ++end) {
    size_t longest = 0;
    for (const std::string& stop : stops) {
      if (text.substr(0, end).ends_with(stop)) longest = std::max(longest, stop.size());
    }
    if (longest > 0) return {text.substr(0, end - longest), true};
  }
  return {text, false};
}

// How much of the end of the text could become a stop string.
size_t open_bytes(const std::string& text, const Strings& stops) {
  size_t most = 0;
  for (const std::string& stop : stops) {
    for (size_t length = 1; length < stop.size(); ++length) {
      if (text.ends_with(stop.substr(0, length))) most = std::max(most, length);
    }
  }
  return most;
}

// The text in pieces that end after each byte whose bit is set.
Strings pieces_of(const std::string& text, uint64_t cuts) {
  Strings pieces = {""};
  for (size_t i = 0; i < text.size(); ++i) {
    pieces.back() += text[i];
    if ((cuts >> i & 1) != 0) pieces.emplace_back();
  }
  return pieces;
}

using Search = std::function<Ended(const Strings& pieces, const Strings& stops)>;

Ended in_stream(const Strings& pieces, const Strings& stops) {
  StopStrings search(stops);
  Ended ended;
  for (const std::string& piece : pieces) ended.text += search.add(piece);
  ended.text += search.finish();
  ended.found = search.found();
  return ended;
}

// Looks into each piece alone.
Ended in_pieces(const Strings& pieces, const Strings& stops) {
  Ended ended;
  for (const std::string& piece : pieces) {
    const Ended here = naive(piece, stops);
    ended.text += here.text;
    ended.found = here.found;
    if (ended.found) break;
  }
  return ended;
}

// Starts to compare anew after a byte that does not fit.
Ended without_fallback(const Strings& pieces, const Strings& stops) {
  std::string text;
  for (const std::string& piece : pieces) text += piece;
  std::vector<size_t> matched(stops.size());
  for (size_t i = 0; i < text.size(); ++i) {
    for (size_t s = 0; s < stops.size(); ++s) {
      matched[s] = stops[s][matched[s]] == text[i] ? matched[s] + 1 : 0;
      if (matched[s] == stops[s].size()) return {text.substr(0, i + 1 - matched[s]), true};
    }
  }
  return {text, false};
}

const std::vector<Strings>& stop_sets() {
  static const std::vector<Strings> sets = {
      {},      {"a"},         {"ab"},          {"aab"},        {"abab"},  {"bbb", "ab"},
      {"aba"}, {"abb", "bb"}, {"b", "aaaaaa"}, {"ba", "abba"}, {"aabab"}, {"baab", "aabaa", "abbb"},
  };
  return sets;
}

// How often the search is wrong, of short texts of two letters in all splittings.
int64_t wrong(const Search& search) {
  const RandomStream random(1, "stop strings");
  int64_t count = 0;
  for (uint64_t i = 0; i < 120; ++i) {
    const Strings& stops = stop_sets()[i % stop_sets().size()];
    std::string text;
    for (uint64_t j = 0; j < 9; ++j) text += random.below(2, 9 * i + j) == 0 ? 'a' : 'b';
    const Ended expected = naive(text, stops);
    for (uint64_t cuts = 0; cuts < 1U << (text.size() - 1); ++cuts) {
      count += search(pieces_of(text, cuts), stops) != expected;
    }
  }
  return count;
}

TEST(StopStrings, AreFoundInEverySplitting) {
  EXPECT_EQ(wrong(in_stream), 0);
  EXPECT_GT(wrong(in_pieces), 0);
  EXPECT_GT(wrong(without_fallback), 0);
}

TEST(StopStrings, HoldBackOnlyWhatMayBecomeOne) {
  const RandomStream random(2, "stop strings");
  for (const Strings& stops : stop_sets()) {
    StopStrings search(stops);
    std::string text, given;
    for (uint64_t i = 0; i < 30; ++i) {
      const char letter = random.below(2, i) == 0 ? 'a' : 'b';
      text += letter;
      given += search.add({&letter, 1});
      if (search.found()) break;
      EXPECT_EQ(given, text.substr(0, text.size() - open_bytes(text, stops)));
    }
  }
}

TEST(StopStrings, TakeTheLongestOfThoseThatEndTogether) {
  EXPECT_EQ(in_stream({"xabc"}, {"c", "abc", "bc"}), (Ended{"x", true}));
  EXPECT_EQ(in_stream({"xabcd"}, {"abcd", "bc"}), (Ended{"xa", true}));
}

TEST(StopStrings, GiveNothingAfterTheFirst) {
  StopStrings search({"|"});
  EXPECT_EQ(search.add("a|b|c"), "a");
  EXPECT_TRUE(search.found());
  EXPECT_EQ(search.add("d"), "");
  EXPECT_EQ(search.finish(), "");
}

TEST(StopStrings, CutBetweenCharacters) {
  StopStrings search({"\u00e9\u00e8", "\u20ac!"});
  EXPECT_EQ(search.add("caf\u00e9"), "caf");
  EXPECT_EQ(search.add("\u20ac"), "\u00e9");
  EXPECT_EQ(search.add("\u00e9"), "\u20ac");
  EXPECT_EQ(search.finish(), "\u00e9");
  EXPECT_EQ(search.finish(), "");
}

TEST(StopStrings, RefuseWhatCannotBeFound) {
  EXPECT_THROW(StopStrings({"a", ""}), UsageError);
  EXPECT_THROW(StopStrings({"\xc3"}), UsageError);
  EXPECT_THROW(StopStrings({"\xa9 x"}), UsageError);
}

// Comparing anew at every byte would take ten thousand million steps here.
TEST(StopStrings, TakeLinearTime) {
  const std::string many(100'000, 'a');
  StopStrings search({many + "b", many + "c"});
  size_t given = 0;
  for (int i = 0; i < 300'000; ++i) given += search.add("a").size();
  EXPECT_EQ(given, 200'000u);
  EXPECT_EQ(search.add("c"), "");
  EXPECT_TRUE(search.found());
}

}  // namespace
}  // namespace attnres::stop_strings_test
