#include "attnres/grammar/answer_grammars.h"

#include <gmock/gmock.h>

#include <regex>
#include <set>

#include "attnres/support/error.h"
#include "attnres/text/bytes.h"
#include "tests/grammar/language_walk.h"
#include "tests/grammar/listed_tokens.h"
#include "tests/text/test_files.h"

namespace attnres::answer_grammars_test {
namespace {

using Kind = AnswerGrammar::Kind;
using ::testing::HasSubstr;
using testing::LanguageWalk;
using testing::ListedTokens;
using testing::texts_of;

bool is_balanced(const std::string& text) {
  int open = 0;
  for (const char c : text) {
    open += c == '(' ? 1 : -1;
    if (open < 0) return false;
  }
  return open == 0;
}

TEST(AnswerGrammars, AllowWhatBeginsATextOfTheLanguage) {
  const ListedTokens tokenizer({"", "(", ")", "()", "(()", ")(", "))", "x", "(x", "((((("});
  AnswerGrammars grammars(tokenizer);
  const auto constraint =
      grammars.prepare({.kind = Kind::ebnf, .text = "root ::= \"\" | \"(\" root \")\" root"});
  const auto language = texts_of({"(", ")"}, 12, is_balanced);
  const LanguageWalk walk(tokenizer, *constraint, language, 6);
  EXPECT_EQ(walk.wrong, 0);
  EXPECT_GT(walk.seen, 50);

  // What differs from it by one text is told apart.
  auto without_one = language;
  without_one.erase("(())");
  EXPECT_GT(LanguageWalk(tokenizer, *constraint, without_one, 6).wrong, 0);
}

TEST(AnswerGrammars, KnowTokensThatHoldOthers) {
  // In order, "acab" comes after "ab" and has it within, but does not begin with it.
  const ListedTokens tokenizer({"ab", "acab", "abc", "xab", "x", "bab"});
  AnswerGrammars grammars(tokenizer);
  const std::set<std::string> language = {"acab", "acabxab", "babx"};
  const auto constraint =
      grammars.prepare({.kind = Kind::choice, .choices = {language.begin(), language.end()}});
  EXPECT_EQ(LanguageWalk(tokenizer, *constraint, language, 7).wrong, 0);
}

TEST(AnswerGrammars, TakePartsOfCharacters) {
  const ByteTokenizer tokenizer;
  AnswerGrammars grammars(tokenizer);
  const auto constraint = grammars.prepare({.kind = Kind::regex, .text = "[é€]x|ça?"});
  EXPECT_EQ(LanguageWalk(tokenizer, *constraint, {"éx", "€x", "ç", "ça"}, 4).wrong, 0);
}

TEST(AnswerGrammars, FollowExpressions) {
  const ListedTokens tokenizer({"a", "b", "ab", "aa", "bb", "abab", "c"});
  AnswerGrammars grammars(tokenizer);
  const auto constraint = grammars.prepare({.kind = Kind::regex, .text = "^(a|ab){1,3}b*$"});
  const auto is_in = [](const std::string& text) {
    return std::regex_match(text, std::regex("(a|ab){1,3}b*"));
  };
  EXPECT_EQ(LanguageWalk(tokenizer, *constraint, texts_of({"a", "b"}, 10, is_in), 5).wrong, 0);
}

TEST(AnswerGrammars, FollowNumbersOfASchema) {
  const ListedTokens tokenizer({"-", "0", "1", "2", "10", "12", "-1", ".", "e", "21", " "});
  AnswerGrammars grammars(tokenizer);
  const auto constraint =
      grammars.prepare({.kind = Kind::json_schema,
                        .text = R"({"type": "integer", "minimum": -12, "maximum": 120})"});
  std::set<std::string> language;
  for (int number = -12; number <= 120; ++number) language.insert(std::to_string(number));
  // Of the digits that tokens have.
  EXPECT_EQ(LanguageWalk(tokenizer, *constraint, language, 4).wrong, 0);
}

TEST(AnswerGrammars, TakeTextsAsTheyAre) {
  const ByteTokenizer tokenizer;
  AnswerGrammars grammars(tokenizer);
  const std::set<std::string> language = {
      "a\"b\\n\n", "[a]", "| \t\x01", "#é", "éa", "\x01\x61", "^", std::string("a\0b", 3)};
  const auto constraint =
      grammars.prepare({.kind = Kind::choice, .choices = {language.begin(), language.end()}});
  EXPECT_EQ(LanguageWalk(tokenizer, *constraint, language, 8).wrong, 0);
}

TEST(AnswerGrammars, SayWhatIsWrong) {
  const ByteTokenizer tokenizer;
  AnswerGrammars grammars(tokenizer);
  const auto error = [&](Kind kind, const std::string& text) {
    return message_of<Error>([&] { grammars.prepare({.kind = kind, .text = text}); });
  };
  EXPECT_THAT(error(Kind::ebnf, "root ::= \"a"), HasSubstr("line 1"));
  EXPECT_THAT(error(Kind::ebnf, "start ::= \"a\""), HasSubstr("root"));
  EXPECT_THAT(error(Kind::ebnf, "root ::= nothing"), HasSubstr("\"nothing\" is not defined"));
  EXPECT_THAT(error(Kind::ebnf, "root ::= Token(5)"), HasSubstr("\"Token\" is not defined"));
  EXPECT_THAT(error(Kind::regex, "(a"), HasSubstr("position"));
  EXPECT_THAT(error(Kind::regex, "(a)\\1"), HasSubstr("references"));
  EXPECT_THAT(error(Kind::regex, "(?=a)b"), HasSubstr("looking around"));
  EXPECT_THAT(error(Kind::json_schema, "{"), HasSubstr("the schema"));
  EXPECT_THAT(error(Kind::choice, ""), HasSubstr("to choose from"));
  EXPECT_THAT(error(Kind::regex, std::string(70'000, 'a')), HasSubstr("65536 bytes at most"));
  const ListedTokens few({"a", "b"});
  AnswerGrammars of_few(few);
  EXPECT_THAT(message_of<Error>([&] { of_few.prepare({.kind = Kind::choice, .choices = {"c"}}); }),
              HasSubstr("no token"));
  // What becomes of it later is said there.
  const auto state = of_few.prepare({.kind = Kind::choice, .choices = {"ac"}})->start();
  state->accept(0);
  EXPECT_THAT(message_of<Error>([&] { state->allowed(); }), HasSubstr("no token"));
}

TEST(AnswerGrammars, AreNotTakenInByCostlyOnes) {
  const ByteTokenizer tokenizer;
  AnswerGrammars grammars(tokenizer);
  // Follows the grammar by the tokens that it allows.
  const auto follow = [&](const AnswerGrammar& answer) {
    const auto state = grammars.prepare(answer)->start();
    for (int i = 0; i < 3000 && !state->allowed().none; ++i) {
      int32_t token = 'a';
      while (!state->allowed()[token]) token = (token + 1) % 256;
      state->accept(token);
    }
  };
  const auto error = [&](Kind kind, const std::string& text) {
    return message_of<Error>([&] { follow({.kind = kind, .text = text}); });
  };
  std::string words =
      "b ::= c c c c c c c c c c\nc ::= d d d d d d d d d d\nd ::= e e e e e e e e e e\n";
  EXPECT_THAT(
      error(Kind::ebnf, "root ::= b b b b b b b b b b\n" + words + "e ::= \"a\" | \"b\" | \"\""),
      HasSubstr("too many ways"));
  EXPECT_THAT(error(Kind::regex, "((((((a{1,9}){1,9}){1,9}){1,9}){1,9}){1,9}){1,9}"),
              HasSubstr("too many ways"));
  EXPECT_THAT(error(Kind::regex, "(a{1,1000}){1,1000}"), HasSubstr("too many ways"));
  EXPECT_THAT(error(Kind::regex, std::string(2000, '(') + "a" + std::string(2000, ')')),
              HasSubstr("nested deeper"));
  EXPECT_THAT(error(Kind::regex, "((a*)*)*b?"), HasSubstr("too many ways"));
  for (const char* text : {"(a|a)*", ".*a.{20}", "[a-z]{1,1000000}"}) {
    EXPECT_NO_THROW(follow({.kind = Kind::regex, .text = text})) << text;
  }
  for (const char* text :
       {R"({"type": "string", "minLength": 1000000})",
        R"({"type": "array", "items": {"type": "null"}, "minItems": 1000000})"}) {
    EXPECT_NO_THROW(grammars.prepare({.kind = Kind::json_schema, .text = text})) << text;
  }
}

}  // namespace
}  // namespace attnres::answer_grammars_test
