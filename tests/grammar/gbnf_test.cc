#include "attnres/grammar/gbnf.h"

#include <fmt/core.h>
#include <gmock/gmock.h>

#include <regex>

#include "attnres/grammar/answer_grammars.h"
#include "attnres/support/error.h"
#include "attnres/text/bytes.h"
#include "tests/grammar/language_walk.h"
#include "tests/grammar/listed_tokens.h"
#include "tests/text/test_files.h"

namespace attnres::gbnf_test {
namespace {

using Characters = std::vector<std::string>;
using Predicate = std::function<bool(const std::string&)>;
using ::testing::HasSubstr;
using testing::LanguageWalk;
using testing::ListedTokens;
using testing::takes;
using testing::texts_of;

const std::string kZero(1, '\0');

// What of the tokens, of the characters each, a grammar allows elsewhere than the language.
int64_t differences_of(const std::string& grammar, const Characters& characters,
                       const std::set<std::string>& language, size_t most_bytes) {
  const ListedTokens tokenizer(characters);
  AnswerGrammars grammars(tokenizer);
  const auto constraint = grammars.prepare({.kind = AnswerGrammar::Kind::ebnf, .text = grammar});
  const LanguageWalk walk(tokenizer, *constraint, language, most_bytes);
  EXPECT_GT(walk.seen, 1) << grammar;
  return walk.wrong;
}

void expect_language(const std::string& grammar, const Characters& characters,
                     const Predicate& is_in) {
  const size_t most = characters.size() > 3 ? 6 : 8;
  EXPECT_EQ(differences_of(grammar, characters, texts_of(characters, most, is_in), 4), 0)
      << grammar;
}

void expect_expression(const std::string& grammar, const Characters& characters,
                       const std::string& expression) {
  const std::regex whole(expression);
  expect_language(grammar, characters,
                  [&](const std::string& text) { return std::regex_match(text, whole); });
}

TEST(Gbnf, HasAlternativesThatMayBeEmpty) {
  const Characters abc = {"a", "b", "c"};
  expect_expression("root ::= \"a\" | \"b\" \"c\"", abc, "a|bc");
  expect_expression("root ::= | \"a\" | \"b\" root", abc, "b*a?");
  expect_expression("root ::= \"a\" |", abc, "a?");
  expect_expression("root ::= (\"a\" | ) \"b\"", abc, "a?b");
  expect_expression("root ::= ( ) \"a\" (|)", abc, "a");
  expect_expression("root ::= \"\" \"a\" \"\"* \"\"{3}", abc, "a");
  expect_expression("root ::= \"a\" ws \"b\"\nws ::= | \"c\" ws", abc, "ac*b");
}

TEST(Gbnf, EndsRulesWithLines) {
  const Characters abc = {"a", "b", "c"};
  expect_expression("# all\n\nroot ::= # so\n  \"a\" |\n\n \"b\"\n | \"c\" # end", abc, "a|b|c");
  expect_expression("root ::= (\n \"a\" # one\n x?\n)+ x\nx ::= \"b\"\n", abc, "(ab?)+b");
  expect_expression("root ::= \"a\" x\r\nx ::= \"b\"\r\n  | \"c\"\r\n", abc, "ab|ac");
  expect_expression("root::=\"a\"x\tx\n\tx ::=(\"b\")", abc, "abb");
  expect_expression("root ::= \"a\nb\"", {"a", "\n", "b"}, "a\nb");
}

TEST(Gbnf, RepeatsItems) {
  const Characters abc = {"a", "b", "c"};
  expect_expression("root ::= \"ab\"* \"c\"", abc, "(ab)*c");
  expect_expression("root ::= \"a\" + [bc] ? ", abc, "a+[bc]?");
  expect_expression("root ::= \"a\"{2}", abc, "aa");
  expect_expression("root ::= (\"a\" | \"bc\"){2,}", abc, "(a|bc){2,}");
  expect_expression("root ::= \"a\"{ 1 , 2 } x{,2}\nx ::= \"b\"", abc, "a{1,2}b{0,2}");
  expect_expression("root ::= \"a\"{0} \"b\"{0,0} \"c\"{0,1}", abc, "c?");
  expect_expression("root ::= \"a\"{1,} \"b\"{0,} \"c\"{003}", abc, "a+b*ccc");
  expect_expression("root ::= (\"a\"{2}){1,2}", abc, "(aa){1,2}");
  expect_expression("root ::= \"a\"{0,1000000}", abc, "a*");
  // Of what may be empty.
  expect_expression("root ::= (\"a\"?)* \"b\"", abc, "a*b");
  expect_expression("root ::= ((\"a\"*)*)+ \"b\"", abc, "a*b");
  expect_expression("root ::= (\"a\"? \"b\"?){2,3} \"c\"", abc, "(a?b?){2,3}c");
  expect_expression("root ::= ws* \"b\" ws{3,}\nws ::= \"a\"*", abc, "a*ba*");
  expect_expression("root ::= (\"\" | \"a\")+", abc, "a*");
}

TEST(Gbnf, HasClasses) {
  expect_expression("root ::= [a-c]*", {"a", "c", "d"}, "[ac]*");
  expect_expression("root ::= [^a] [^b-d]", {"a", "b", "d", "é"}, "(b|d|é)(a|é)");
  expect_expression("root ::= [\\^a]+", {"a", "b", "^"}, "[a^]+");
  expect_expression("root ::= [a^]+", {"a", "b", "^"}, "[a^]+");
  expect_expression("root ::= [\\^] [\\^-`] [^^]", {"a", "^", "`"}, "\\^[\\^`][a`]");
  expect_expression("root ::= [a-][-b]", {"a", "b", "-"}, "[a\\-][b\\-]");
  expect_expression("root ::= [a\\-c]*", {"a", "b", "-"}, "[a\\-]*");
  expect_expression("root ::= [+--]*", {"+", ",", "-", "."}, "[+,\\-]*");
  expect_expression("root ::= [\\][\\[] [^\\]]", {"[", "]", "a"}, "[\\[\\]][\\[a]");
  expect_expression("root ::= [\"\\\\] [^\"\\\\\\n]", {"\"", "\\", "\n", "a"}, "[\"\\\\]a");
  expect_expression("root ::= [ca-b]+ [b-db-c]", {"a", "b", "d"}, "[ab]+[bd]");
  expect_expression("root ::= [\\x1f0-9]+", {"\x1f", "0", "a"}, "[\x1f\x30]+");
  expect_expression("root ::= [(|)#] [.*+?{}]", {"(", "#", ".", "a"}, "[(#]\\.");
  expect_expression("root ::= . \"a\" .", {"a", "\n", "é", "😀"}, "(a|\n|é|😀)a(a|\n|é|😀)");
  expect_expression("root ::= [ぁ-ゟ]", {"ぁ", "ん", "ァ"}, "ぁ|ん");
}

TEST(Gbnf, HasEscapesOfAFixedLength) {
  expect_expression("root ::= \"\\x613\"", {"a", "3", "\u0613"}, "a3");
  expect_expression("root ::= \"\\u00e9a\" [\\u00e9a]", {"é", "a", "\u0e9a"}, "éa(é|a)");
  expect_expression("root ::= \"\\U0001F6000\"", {"😀", "0"}, "😀0");
  expect_expression("root ::= \"éa\" \"\\xe9e\"", {"é", "a", "e"}, "éaée");
  expect_expression("root ::= [\\x80-\\xff]", {"\u0080", "ÿ", "Ā"}, "\u0080|ÿ");
  expect_expression("root ::= \"\\x01a\\x1fF\"", {"\x01", "a", "\x1f", "F"}, "\x01\x61\x1f\x46");
  expect_expression("root ::= \"\\n\\r\\t\\\\\"", {"\n", "\r", "\t", "\\"}, "\n\r\t\\\\");
  expect_expression("root ::= \"\\\"\\[\\]\" [\\-]", {"\"", "[", "]", "-"}, "\"\\[\\]-");
  const auto zeros = [](const std::string& text) {
    return text == kZero + "a" + kZero || text == "a" + kZero;
  };
  expect_language("root ::= [\\x00a] \"\\x00\" | \"\\x00a\\u0000\"", {kZero, "a"},
                  [&](const std::string& text) { return zeros(text) || text == kZero + kZero; });
}

TEST(Gbnf, HasNoWordsOfItsOwn) {
  const Characters abc = {"a", "b", "c"};
  expect_expression("root ::= Token(65)\nToken ::= \"a\"\n65 ::= \"b\"", abc, "ab");
  expect_expression("root ::= true Regex(\"a\" )\ntrue ::= \"b\"\nRegex ::= \"c\"", abc, "bca");
  expect_expression("root ::= rule_1 -1 _\nrule_1 ::= \"a\"\n-1 ::= \"b\"\n_ ::= \"c\"", abc,
                    "abc");
  expect_expression("rule_0 ::= \"a\"\nroot ::= rule_0 \"=\" (\"=\")", {"a", "="}, "a==");
}

TEST(Gbnf, HasRecursiveRules) {
  const auto is_nested = [](const std::string& text) {
    const size_t half = text.size() / 2;
    return text == std::string(half, 'a') + std::string(half, 'b');
  };
  expect_language("root ::= \"a\" root \"b\" |", {"a", "b"}, is_nested);
  const auto is_palindrome = [](const std::string& text) {
    return text == std::string(text.rbegin(), text.rend());
  };
  expect_language("root ::= | [ab] | \"a\" root \"a\" | \"b\" root \"b\"", {"a", "b"},
                  is_palindrome);
  // Told apart from what differs by one text.
  auto language = texts_of({"a", "b"}, 8, is_palindrome);
  const std::string grammar = "root ::= | [ab] | \"a\" root \"a\" | \"b\" root \"b\"";
  EXPECT_EQ(differences_of(grammar, {"a", "b"}, language, 4), 0);
  language.erase("aba");
  EXPECT_GT(differences_of(grammar, {"a", "b"}, language, 4), 0);
}

TEST(Gbnf, NegatedClassesHaveCharactersOnly) {
  const ByteTokenizer tokenizer;
  AnswerGrammars grammars(tokenizer);
  for (const char* text : {"root ::= [^a]", "root ::= .", "root ::= [\\uD7FF-\\uE000]"}) {
    const auto constraint = grammars.prepare({.kind = AnswerGrammar::Kind::ebnf, .text = text});
    EXPECT_TRUE(takes(*constraint, "\ud7ff")) << text;
    EXPECT_TRUE(takes(*constraint, "\ue000")) << text;
    EXPECT_FALSE(takes(*constraint, "\xed\xa0\x80")) << text;
    EXPECT_FALSE(takes(*constraint, "\xed\xbf\xbf")) << text;
    EXPECT_FALSE(takes(*constraint, "\xc1\xa1")) << text;
    EXPECT_FALSE(takes(*constraint, "\xf4\x90\x80\x80")) << text;
  }
}

TEST(Gbnf, TakesGrammarsAsPeopleWriteThem) {
  struct Sample {
    std::string grammar;
    std::vector<std::string> in, out;
  };
  const std::vector<Sample> samples = {
      {
          R"gbnf(# JSON, with few blanks
root  ::= value
value ::= dict | list | text | number | ("true" | "false" | "null") gap
dict  ::= "{" gap ( pair ("," gap pair)* )? "}" gap
pair  ::= text ":" gap value
list  ::=
  "[" gap (
      value # the first
      ("," gap value)*
  )? "]" gap
text  ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" gap
number ::= "-"? ("0" | [1-9] [0-9]{0,15}) ("." [0-9]+)? gap
gap   ::= | " " | "\n" [ \t]{0,20}
)gbnf",
          {R"gbnf({"a": [1, -2.50, {}], "é\n\u00e9": null})gbnf", "[]", "\"\"", "{\n\t\"x\":0}"},
          {"[1,]", "01", "{a: 1}", "\"\x01\"", "\"\\x\"", "[1,  2]", "\"\x7f\""}},
      {R"gbnf(root ::= sum "=" [0-9]+ "\n"
sum ::= product ([-+] product)*
product ::= factor ([*/] factor)*
factor ::= [a-z] [a-z0-9_]* | [0-9]+ | "(" sum ")")gbnf",
       {"1+2*(x_1-3)=7\n", "a=0\n"},
       {"1+=2\n", "(1=1\n", "1=1", "_=1\n"}},
      {R"gbnf(root ::= line+
line ::= [*-] " " [^\r\n\x0b\x0c\x85\u2028\u2029]+ "\n")gbnf",
       {"- bread\n* crème brûlée 🍮\n"},
       {"bread\n", "- \n", "- a\u2028b\n", "- a\u0085\n", "- a"}},
      {R"gbnf(root ::= (turn "\n"){1,40}
turn ::= [1-9] [0-9]? ". " move (" " move)?
move ::= (piece | pawn | "O-O" "-O"?) [+#]?
piece ::= [KQRBN] [a-h]? [1-8]? "x"? square
pawn ::= ([a-h] "x")? square ("=" [QRBN])?
square ::= [a-h] [1-8])gbnf",
       {"1. e4 e5\n2. Nf3 Nc6\n3. O-O exd8=Q+\n", "12. Nbd7#\n"},
       {"1. e9 e5\n", "0. e4\n", "1. e4 e5", "1. O-O-O-O\n"}},
      {R"gbnf(root ::= word ([ 、。] word)*
word ::= ([ぁ-ゟ] | [\u30A1-\u30FF] | [一-\U00009FFF])+)gbnf",
       {"日本語 テキスト、ひらがな"},
       {"abc", "、", "日本語\u3000"}},
  };
  const ByteTokenizer tokenizer;
  AnswerGrammars grammars(tokenizer);
  for (const auto& [grammar, in, out] : samples) {
    const auto constraint = grammars.prepare({.kind = AnswerGrammar::Kind::ebnf, .text = grammar});
    for (const std::string& text : in) EXPECT_TRUE(takes(*constraint, text)) << text;
    for (const std::string& text : out) EXPECT_FALSE(takes(*constraint, text)) << text;
  }
}

TEST(Gbnf, SaysWhatIsWrong) {
  const auto deep = [](int depth) {
    return "root ::= " + std::string(depth, '(') + "\"a\"" + std::string(depth, ')');
  };
  const auto repeated = [](const std::string& text, int times) {
    std::string all;
    for (int i = 0; i < times; ++i) all += text;
    return all;
  };
  const auto rules = [](int count) {
    std::string all = "root ::= \"a\"\n";
    for (int i = 1; i < count; ++i) all += fmt::format("r{} ::= \"a\"\n", i);
    return all;
  };
  struct Refused {
    std::string grammar, message;
  };
  const std::vector<Refused> refused = {
      {"", "line 1: no rule is called root"},
      {"start ::= \"a\"", "line 1: no rule is called root"},
      {"\nroot ::= x\n", "line 2: the rule \"x\" is not defined"},
      {"root ::= x{0}", "line 1: the rule \"x\" is not defined"},
      {"root ::= \"a\"\r\nx ::= \"a\"\r\nx ::= \"b\"", "line 3: the rule \"x\" is defined twice"},
      {"root ::= Token(65)", "line 1: the rule \"Token\" is not defined"},
      {"root ::= Token\n(65)", "line 2: expected a rule"},
      {"root ::= Regex(\"a+\")", "line 1: the rule \"Regex\" is not defined"},
      {"root ::= a\na[max_tokens=5] ::= [a-z]*", "line 2: expected ::= after \"a\""},
      {"root ::= a.b\n", "line 1: the rule \"a\" is not defined"},
      {"root ::=\n <[1000]>", "line 2: tokens, as <...>, are not taken; write the text"},
      {"root ::= !<think>", "line 1: tokens, as <...>, are not taken"},
      {"root = \"a\"", "line 1: expected ::= after \"root\""},
      {"root ::= \"a\"\n\"b\"", "line 2: expected a rule"},
      {"root ::= \"a\" ;", "got \";\""},
      {"root ::= \"a\" |\nx ::= \"b\"", "line 2: the rule \"x\" begins within another"},
      {"root ::= (\"a\"\nx ::= \"b\"", "line 2: the rule \"x\" begins within another"},
      {"root ::= \"a\n", "line 1: a text without its second \""},
      {"root ::= \"a\\", "line 1: no such escape"},
      {"\nroot ::= [a", "line 2: [ without ]"},
      {"root ::= [a-", "line 1: [ without ]"},
      {"root ::= \"a\"\nx ::= (\n\"a\"", "line 2: ( without )"},
      {"root ::= \"a\")", "line 1: ) without ("},
      {"root ::= []", "line 1: a class of no characters"},
      {"root ::= [^]", "line 1: a class of no characters"},
      {"root ::= [^\\x00-\\U0010ffff]", "line 1: a class of no characters"},
      {"root ::= [z-a]", "line 1: a range backwards, from U+007A to U+0061"},
      {"root ::= * \"a\"", "line 1: nothing before * that it repeats"},
      {"root ::= \"a\"*?", "line 1: a repetition of a repetition; put what is repeated into ( )"},
      {"root ::= \"a\"{}", "line 1: expected {n}"},
      {"root ::= \"a\"{,}", "line 1: expected {n}"},
      {"root ::= \"a\"{-1}", "line 1: expected {n}"},
      {"root ::= \"a\"{1,2", "line 1: expected {n}"},
      {"root ::= \"a\"{5,2}", "line 1: {5,2}: more at least than at most; write {2,5}"},
      {"root ::= \"a\"{1000001}", "line 1: repeated more than 1000000 times"},
      {"root ::= \"a\"{1,18446744073709551617}", "line 1: repeated more than 1000000 times"},
      {"root ::= \"\\x4\"", "line 1: \\x takes 2 hexadecimal digits"},
      {"root ::= \"\\u00g1\"", "line 1: \\u takes 4 hexadecimal digits"},
      {"root ::= [\\U0010]", "line 1: \\U takes 8 hexadecimal digits"},
      {"root ::= \"\\d\"", "line 1: no such escape \"\\d\""},
      {"root ::= \"\\ud83d\\ude00\"", "line 1: U+D83D is no character, but half of a surrogate"},
      {"root ::= [\\U00110000]", "line 1: U+110000 is no character; the last is U+10FFFF"},
      {"root ::= \"\\Uffffffff\"", "line 1: U+FFFFFFFF is no character"},
      {"#\nroot ::= \"\xff\"", "line 2: not UTF-8"},
      {"root ::= \"\xed\xa0\x80\"", "line 1: not UTF-8"},
      {"#\n#\nroot ::= \"" + kZero + "\"", "line 3: a byte 0; write it as \\x00"},
      {"root ::= root \"a\" | \"b\"", "line 1: the rule \"root\" may begin with itself, which"},
      {"root ::= a\na ::= b\nb ::= \"\"? a \"x\" | \"y\"",
       "line 2: the rule \"a\" may begin with itself through \"b\""},
      {"root ::= \"a\" x\nx ::= ws (\"b\" | x) | \"c\"\nws ::= | \" \"",
       "line 2: the rule \"x\" may begin with itself"},
      {"root ::= (\"a\"* root)? \"b\"", "line 1: the rule \"root\" may begin with itself"},
      {"root ::= \"a\" root", "line 1: the texts of the rule \"root\" never end"},
      {"root ::= \"a\" b\nb ::= \"b\" c\nc ::= \"c\" b",
       "line 3: the texts of the rule \"c\" never"},
      {"root ::= \"a\" | b\nb ::= \"b\" b", "line 2: the texts of the rule \"b\" never end"},
      {deep(101), "line 1: ( ) deeper than 100"},
      {"root ::= " + repeated("\"a\"", 5001), "line 1: more than 5000"},
      {"root ::= " + repeated("|", 5001), "line 1: more than 5000"},
      {rules(1001), "line 1001: more than 1000 rules"},
      {"root ::= \"a\" #" + std::string(65'536, 'x'), "expected 65536 bytes at most"},
  };
  for (const Refused& one : refused) {
    EXPECT_THAT(message_of<Error>([&] { gbnf_grammar(one.grammar); }), HasSubstr(one.message))
        << one.grammar.substr(0, 200);
  }
  for (const std::string& grammar : {deep(100), "root ::= " + repeated("\"a\"", 5000), rules(1000),
                                     std::string("root ::= \"a\"\nunused ::= unused \"a\"\n"),
                                     std::string("root ::= \"a\" root | \"b\"{1000000}")}) {
    EXPECT_NO_THROW(gbnf_grammar(grammar)) << grammar.substr(0, 200);
  }
}

}  // namespace
}  // namespace attnres::gbnf_test
