#include "attnres/grammar/regex.h"

#include <fmt/core.h>
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "attnres/grammar/answer_grammars.h"
#include "attnres/support/error.h"
#include "attnres/support/json.h"
#include "attnres/text/bytes.h"
#include "tests/grammar/language_walk.h"
#include "tests/text/test_files.h"

namespace attnres::regex_test {
namespace {

using Kind = AnswerGrammar::Kind;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string schema_of(const std::string& expression) {
  return Json({{"type", "string"}, {"pattern", expression}}).dump();
}

// Classes of a pattern may lack it.
bool is_escaped(const std::string& text) {
  return Json(text).dump().size() > text.size() + 2;
}

class Regex : public ::testing::Test {
 protected:
  bool takes(const std::string& expression, std::string_view text) {
    return testing::takes(*grammars_.prepare({.kind = Kind::regex, .text = expression}), text);
  }
  bool pattern_takes(const std::string& expression, std::string_view json) {
    return testing::takes(
        *grammars_.prepare({.kind = Kind::json_schema, .text = schema_of(expression)}), json);
  }

  const ByteTokenizer tokenizer_{};
  AnswerGrammars grammars_{tokenizer_};
};

TEST_F(Regex, MatchesWhatPythonDoes) {
  const Json cases = read_json(ATTNRES_SOURCE_DIR "/tests/fixtures/regex_cases.json")["cases"];
  ASSERT_GT(cases.size(), 350);
  int64_t seen = 0, taken_by_next = 0;
  for (size_t i = 0; i < cases.size(); ++i) {
    const auto expression = cases[i][0].get<std::string>();
    const auto next = cases[(i + 1) % cases.size()][0].get<std::string>();
    for (const bool good : {true, false}) {
      for (const Json& each : cases[i][good ? 1 : 2]) {
        const auto text = each.get<std::string>();
        EXPECT_EQ(takes(expression, text), good) << expression << " and " << each;
        if (!good || !is_escaped(text)) {
          EXPECT_EQ(pattern_takes(expression, each.dump()), good) << expression << " and " << each;
        }
        ++seen;
        if (good) taken_by_next += takes(next, text) ? 1 : 0;
      }
    }
  }
  EXPECT_GT(seen, 8000);
  // Texts of one expression are seldom those of another: what takes all of them is told apart.
  EXPECT_LT(taken_by_next, seen / 10);
}

TEST_F(Regex, TakesCharactersOnly) {
  for (const char* expression : {"[^a]", ".", "\\W", "[\\u0000-\\U0010ffff]"}) {
    EXPECT_TRUE(takes(expression, "\xed\x9f\xbf")) << expression;   // U+D7FF
    EXPECT_FALSE(takes(expression, "\xed\xa0\x80")) << expression;  // half of a pair
    EXPECT_FALSE(takes(expression, "\xc0\x80")) << expression;      // longer than it needs
    EXPECT_FALSE(takes(expression, "\xff")) << expression;
    EXPECT_TRUE(takes(expression, std::string_view("\0", 1))) << expression;
  }
}

TEST_F(Regex, PatternsAreOfTheTextThatJsonHas) {
  EXPECT_TRUE(pattern_takes("a\"\\\\\\n\\x01", R"("a\"\\\n\u0001")"));
  EXPECT_FALSE(pattern_takes("a\"b", R"("a"b")"));
  EXPECT_TRUE(pattern_takes("(\"|'){2}", R"("\"'")"));
  EXPECT_TRUE(pattern_takes("[\\t\"]", R"("\t")"));
  EXPECT_FALSE(pattern_takes("[\\t\"]", R"("\\t")"));
  // A class that has others leaves them out.
  EXPECT_TRUE(pattern_takes("[^a]", "\"b\""));
  EXPECT_FALSE(pattern_takes("[^a]", R"("\"")"));
  EXPECT_FALSE(pattern_takes("[^a]{150}", "\"" + std::string(149, 'b') + "\"\""));
}

TEST_F(Regex, CountsFar) {
  const std::string most(1'000'000, 'a');
  EXPECT_TRUE(takes("a{2,1000000}", std::string_view(most).substr(0, 2000)));
  EXPECT_FALSE(takes("a{2000,1000000}", std::string_view(most).substr(0, 1999)));
  EXPECT_TRUE(pattern_takes(".{1,1000000}", "\"é\""));
}

TEST_F(Regex, RefusesByPlace) {
  struct Case {
    std::string expression;
    int place;
    const char* message;
  };
  const std::string hundred(100, '('), closed(100, ')');
  for (const Case& c : std::vector<Case>{
           {"a(?=b)", 2, "looking around is not taken"},
           {"(?!b)", 1, "looking around"},
           {"é(?<=b)", 2, "looking around"},
           {"(?<!b)", 1, "looking around"},
           {"(?i)a", 1, "flags of groups are not taken; write (?: ), and [aA]"},
           {"(?i:a)", 1, "flags"},
           {"(?-s:a)", 1, "flags"},
           {"(?>a)", 1, "atomic groups are not taken; write (?: )"},
           {"(?#a)", 1, "comments are not taken"},
           {"(a)(?P=a)", 4, "references to groups are not taken"},
           {"(a)(?(1)b)", 4, "references"},
           {"(a)\\1", 4, "references"},
           {"(?<n>a)\\k<n>", 8, "references"},
           {"(?<1>a)", 4, "expected a name"},
           {"(?<>a)", 4, "expected a name"},
           {"(?<a", 4, "expected a name"},
           {"a\\b", 2, "\\b is not taken; write out what may stand there, or \\x08"},
           {"[\\b]", 2, "\\b is not taken"},
           {"\\B", 1, "\\B is not taken"},
           {"\\Aa", 1, "\\A is not taken; write nothing: the text is matched as a whole"},
           {"a\\Z", 2, "\\Z is not taken"},
           {"\\p{L}", 1, "\\p is not taken; write a class of characters"},
           {"\\cA", 1, "\\c is not taken; write the character's number"},
           {"\\q", 1, "\\q is not taken; write the letter alone"},
           {"\\é", 1, "no need of \\"},
           {"a\\", 2, "nothing follows this \\"},
           {"[\\", 2, "nothing follows this \\"},
           {"\\01", 1, "octal numbers are not taken; write \\x00"},
           {"\\x4", 1, "expected 2 hexadecimal digits after \\x"},
           {"\\u12g4", 1, "expected 4 hexadecimal digits after \\u"},
           {"\\U0001F60", 1, "expected 8 hexadecimal digits after \\U"},
           {"\\u{}", 1, "expected digits and a }"},
           {"\\u{12", 1, "expected digits and a }"},
           {"\\u{110000}", 1, "no such character"},
           {"\\UFFFFFFFF", 1, "no such character"},
           {"a\\ud83d", 2, "half of a surrogate pair"},
           {"\\ude00\\ud83d", 1, "half of a surrogate pair"},
           {"\\ud83d\\u0041", 1, "half of a surrogate pair"},
           {"\\u{d800}", 1, "half of a surrogate pair"},
           {"*a", 1, "nothing that this * repeats; write \\*"},
           {"a|+", 3, "nothing that this + repeats"},
           {"(?)", 1, "flags"},
           {"(*)", 2, "nothing that this * repeats"},
           {"^*", 2, "nothing that this * repeats"},
           {"{2}", 1, "nothing that this { repeats"},
           {"a**", 3, "this repeats a repetition; write ( ) around that"},
           {"a{2}{3}", 5, "repeats a repetition"},
           {"a???", 4, "repeats a repetition"},
           {"a*+", 3, "possessive quantifiers are not taken; leave out this +"},
           {"a{2}+", 5, "possessive"},
           {"a{", 2, "expected {2}, {2,}, {,5} or {2,5} at this {; write \\{"},
           {"a{}", 2, "at this {"},
           {"a{,}", 2, "at this {"},
           {"a{b}", 2, "at this {"},
           {"a{2 }", 2, "at this {"},
           {"a{-1}", 2, "at this {"},
           {"a{3,2}", 2, "3 is more than 2"},
           {"a{1000001}", 3, "a count of 1000000 at most"},
           {"a{4294967297}", 3, "a count of 1000000 at most"},
           {"a{1,99999999999999999999999}", 5, "a count of 1000000 at most"},
           {"a}", 2, "this } closes nothing; write \\}"},
           {"a]", 2, "this ] closes nothing; write \\]"},
           {"a)", 2, "this ) closes nothing; write \\)"},
           {"b(a", 2, "this ( is not closed; write \\("},
           {"b[a", 2, "this [ is not closed; write \\["},
           {"[a\\]", 1, "this [ is not closed"},
           {"[a-", 1, "this [ is not closed"},
           {"[]", 2, "begin with ] or are empty are not taken; write \\]"},
           {"[]a]", 2, "begin with ]"},
           {"[^]", 3, "begin with ]"},
           {"[^\\s\\S]", 1, "no character is in this class"},
           {"[[:digit:]]", 2, "classes in classes"},
           {"[a[]", 3, "classes in classes"},
           {"[b-a]", 2, "this range is backwards"},
           {"[a-\\d]", 2, "a character on both sides of -; write \\-"},
           {"[\\d-a]", 2, "a character on both sides"},
           {"a^b", 2, "^ is taken at the beginning only; write \\^"},
           {"(a|)^b", 5, "^ is taken at the beginning only"},
           {"a(^b)", 3, "^ is taken at the beginning only"},
           {"a$b", 2, "$ is taken at the end only; write \\$"},
           {"(a$)b", 3, "$ is taken at the end only"},
           {"(a|(b$))b", 6, "$ is taken at the end only"},
           {"$a", 1, "$ is taken at the end only"},
           {"(^a)*", 2, "^ is not taken in what is repeated; write it outside"},
           {"(a$){2}", 3, "$ is not taken in what is repeated"},
           {std::string("a\0b", 3), 2, "a NUL byte; write \\x00"},
           {fmt::format("{}(a){}", hundred, closed), 101, "nested deeper than 100"}}) {
    const std::string message = message_of<Error>([&] { regex_grammar(c.expression); });
    EXPECT_THAT(message,
                AllOf(StartsWith(fmt::format("position {}: ", c.place)), HasSubstr(c.message)))
        << c.expression;
    EXPECT_EQ(message_of<Error>([&] { json_pattern(c.expression); }), message) << c.expression;
  }
  EXPECT_NO_THROW(regex_grammar(hundred + "a" + closed));
  EXPECT_NO_THROW(regex_grammar(std::string(5000, 'a')));
  EXPECT_THAT(message_of<Error>([] { regex_grammar(std::string(5001, 'a')); }),
              HasSubstr("5000 bytes at most, got 5001"));
  EXPECT_THAT(message_of<Error>([] { regex_grammar("a\xff"); }), HasSubstr("the expression"));
}

}  // namespace
}  // namespace attnres::regex_test
