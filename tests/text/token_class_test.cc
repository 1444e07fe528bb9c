#include "attnres/text/token_class.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "attnres/text/bytes.h"

namespace attnres::testing::token_class_test {
namespace {

std::string class_name(const std::string& text) {
  return kTokenClassNames[static_cast<size_t>(token_class(text))];
}

TEST(TokenClass, IsOfTheTokensText) {
  const std::vector<std::pair<std::string, std::string>> expected = {
      {"the", "letters"},
      {" the", "letters"},
      {"é", "letters"},
      {" Ж", "letters"},
      {"漢字", "letters"},
      {"x1", "letters"},
      {"don't", "letters"},
      {"42", "digits"},
      {" 3.14", "digits"},
      {" ", "whitespace"},
      {"\n\n  ", "whitespace"},
      {"\u00a0\u2003", "whitespace"},
      {"\u3000", "whitespace"},
      {",", "punctuation"},
      {" ->", "punctuation"},
      {"_", "punctuation"},
      {"“", "punctuation"},
      {"。", "punctuation"},
      {"", "other"},
      {std::string(1, '\0'), "other"},
      {"\x1b", "other"},
      {"\xe2\x80", "other"},
      {"\xff", "other"},
      {"→", "other"},
      {"😀", "other"}};
  for (const auto& [text, name] : expected) EXPECT_EQ(class_name(text), name) << text;
}

TEST(TokenClass, OfBytesIsThatOfTheirAscii) {
  std::vector<int> counts(kTokenClassNames.size());
  const ByteTokenizer tokenizer;
  for (int32_t id = 0; id < 256; ++id) {
    ++counts[static_cast<size_t>(token_class(tokenizer.token_text(id)))];
  }
  // 52 letters, 10 digits, 6 kinds of blanks, 32 marks, and the rest.
  EXPECT_EQ(counts, (std::vector<int>{52, 10, 6, 32, 256 - 52 - 10 - 6 - 32}));
}

}  // namespace
}  // namespace attnres::testing::token_class_test
