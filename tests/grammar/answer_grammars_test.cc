#include "attnres/grammar/answer_grammars.h"

#include <gmock/gmock.h>

#include <functional>
#include <regex>
#include <set>

#include "attnres/support/error.h"
#include "attnres/text/bytes.h"
#include "tests/grammar/listed_tokens.h"
#include "tests/text/test_files.h"

namespace attnres::answer_grammars_test {
namespace {

using Kind = AnswerGrammar::Kind;
using Tokens = std::vector<int32_t>;
using ::testing::HasSubstr;
using testing::ListedTokens;

// All texts of these characters up to a length that are in a language.
std::set<std::string> texts_of(const std::string& characters, size_t most,
                               const std::function<bool(const std::string&)>& is_in) {
  std::set<std::string> found;
  std::vector<std::string> texts = {""};
  for (size_t i = 0; i < texts.size(); ++i) {
    if (is_in(texts[i])) found.insert(texts[i]);
    if (texts[i].size() == most) continue;
    for (const char c : characters) texts.push_back(texts[i] + c);
  }
  return found;
}

bool begins_one(const std::set<std::string>& language, const std::string& text) {
  const auto next = language.lower_bound(text);
  return next != language.end() && next->starts_with(text);
}

// Follows every sequence of allowed tokens up to a length, and counts where tokens and ends are not
// what the language has. Texts of the language are twice as long at least.
class Walk {
 public:
  Walk(const Tokenizer& tokenizer, const TokenConstraint& constraint,
       std::set<std::string> language, size_t most)
      : tokenizer_(tokenizer),
        constraint_(constraint),
        language_(std::move(language)),
        most_(most) {
    follow({}, "");
  }

  int64_t wrong = 0, seen = 0;

 private:
  void follow(const Tokens& tokens, const std::string& text) {
    const auto state = constraint_.start();
    for (const int32_t token : tokens) state->accept(token);
    const AllowedTokens allowed = state->allowed();
    ++seen;
    if (allowed.end != language_.contains(text)) ++wrong;
    bool none = true;
    for (int32_t token = 0; token < tokenizer_.vocab_size(); ++token) {
      const std::string added = tokenizer_.token_text(token);
      if (text.size() + added.size() > most_) continue;
      if (allowed[token] != (!added.empty() && begins_one(language_, text + added))) ++wrong;
      none = none && !allowed[token];
      if (!allowed[token]) continue;
      Tokens longer = tokens;
      longer.push_back(token);
      follow(longer, text + added);
    }
    if (allowed.none && !none) ++wrong;
  }

  const Tokenizer& tokenizer_;
  const TokenConstraint& constraint_;
  const std::set<std::string> language_;
  const size_t most_;
};

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
  const auto language = texts_of("()", 12, is_balanced);
  const Walk walk(tokenizer, *constraint, language, 6);
  EXPECT_EQ(walk.wrong, 0);
  EXPECT_GT(walk.seen, 50);

  // What differs from it by one text is told apart.
  auto without_one = language;
  without_one.erase("(())");
  EXPECT_GT(Walk(tokenizer, *constraint, without_one, 6).wrong, 0);
}

TEST(AnswerGrammars, KnowTokensThatHoldOthers) {
  // In order, "acab" comes after "ab" and has it within, but does not begin with it.
  const ListedTokens tokenizer({"ab", "acab", "abc", "xab", "x", "bab"});
  AnswerGrammars grammars(tokenizer);
  const std::set<std::string> language = {"acab", "acabxab", "babx"};
  const auto constraint =
      grammars.prepare({.kind = Kind::choice, .choices = {language.begin(), language.end()}});
  EXPECT_EQ(Walk(tokenizer, *constraint, language, 7).wrong, 0);
}

TEST(AnswerGrammars, TakePartsOfCharacters) {
  const ByteTokenizer tokenizer;
  AnswerGrammars grammars(tokenizer);
  const auto constraint = grammars.prepare({.kind = Kind::regex, .text = "[é€]x|ça?"});
  EXPECT_EQ(Walk(tokenizer, *constraint, {"éx", "€x", "ç", "ça"}, 4).wrong, 0);
}

TEST(AnswerGrammars, FollowExpressions) {
  const ListedTokens tokenizer({"a", "b", "ab", "aa", "bb", "abab", "c"});
  AnswerGrammars grammars(tokenizer);
  const auto constraint = grammars.prepare({.kind = Kind::regex, .text = "^(a|ab){1,3}b*$"});
  const auto is_in = [](const std::string& text) {
    return std::regex_match(text, std::regex("(a|ab){1,3}b*"));
  };
  EXPECT_EQ(Walk(tokenizer, *constraint, texts_of("ab", 10, is_in), 5).wrong, 0);
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
  EXPECT_EQ(Walk(tokenizer, *constraint, language, 4).wrong, 0);
}

TEST(AnswerGrammars, TakeTextsAsTheyAre) {
  const ByteTokenizer tokenizer;
  AnswerGrammars grammars(tokenizer);
  // Some are read as others where XGrammar reads again what it wrote.
  const std::set<std::string> language = {"a\"b\\n\n", "[a]",   "| \t\x01",           "#é",
                                          "éb",        "\177a", std::string("\0a", 2)};
  const auto constraint =
      grammars.prepare({.kind = Kind::choice, .choices = {language.begin(), language.end()}});
  EXPECT_EQ(Walk(tokenizer, *constraint, language, 8).wrong, 0);
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
  EXPECT_THAT(error(Kind::ebnf, "root ::= Token(5)"), HasSubstr("Token() is not taken"));
  EXPECT_THAT(error(Kind::ebnf, "root ::= a\na[max_tokens=5] ::= [a-z]*"), HasSubstr("attributes"));
  EXPECT_THAT(error(Kind::ebnf, "root ::= root"), HasSubstr("no token"));
  EXPECT_THAT(error(Kind::regex, "(a"), HasSubstr("position"));
  EXPECT_THAT(error(Kind::regex, "(a)\\1"), HasSubstr("references"));
  EXPECT_THAT(error(Kind::regex, "(?=a)b"), HasSubstr("looking around"));
  EXPECT_THAT(error(Kind::json_schema, "{"), HasSubstr("the schema"));
  EXPECT_THAT(error(Kind::json_schema, R"({"$ref": "#"})"), HasSubstr("no token"));
  EXPECT_THAT(error(Kind::choice, ""), HasSubstr("to choose from"));
  EXPECT_THAT(error(Kind::regex, std::string(70'000, 'a')), HasSubstr("65536 bytes at most"));
  // Names in texts and comments are none.
  EXPECT_NO_THROW(grammars.prepare(
      {.kind = Kind::ebnf, .text = "root ::= a # Token(1)\na ::= \"Token(1)\" [a(] \"]\""}));
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
  EXPECT_THAT(error(Kind::ebnf, "root ::= e\ne ::= e \"+\" e | e e | [a-z ]+ | \"(\" e \")\""),
              HasSubstr("too many ways"));
  EXPECT_THAT(error(Kind::regex, "((((((a{1,9}){1,9}){1,9}){1,9}){1,9}){1,9}){1,9}"),
              HasSubstr("too many ways"));
  EXPECT_THAT(error(Kind::regex, "(a{1,1000}){1,1000}"), HasSubstr("too many ways"));
  EXPECT_THAT(error(Kind::regex, std::string(2000, '(') + "a" + std::string(2000, ')')),
              HasSubstr("nested deeper"));
  EXPECT_THAT(error(Kind::regex, "((a*)*)*b?"), HasSubstr("too many ways"));
  // Numbers of characters that there are not.
  EXPECT_NO_THROW(grammars.prepare(
      {.kind = Kind::ebnf, .text = "root ::= \"a\" | \"\\xffffffffffffff\" | [\\U7fffffff]"}));
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
