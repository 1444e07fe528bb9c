#include "attnres/support/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "attnres/support/error.h"
#include "attnres/support/file.h"

namespace attnres::json_test {
namespace {
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string refusal(std::string_view text) {
  try {
    parse_json(text, "x.json");
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(Json, MistakesHaveLineAndColumn) {
  EXPECT_THAT(refusal("{\n  \"a\": 1,\n  \"b\" 2\n}"),
              HasSubstr("x.json: not valid JSON at line 3, column 7"));
  EXPECT_THAT(refusal("!"), HasSubstr("line 1, column 1"));
  EXPECT_THAT(refusal("{\"a\": 1"), HasSubstr("line 1"));
  EXPECT_THAT(refusal(""), HasSubstr("line 1, column 1"));
}

TEST(Json, KeysKeepTheirOrder) {
  EXPECT_EQ(parse_json(R"({"b":1,"a":2})", "x").dump(), R"({"b":1,"a":2})");
}

std::string nested(size_t levels) {
  return std::string(levels, '[') + std::string(levels, ']');
}

// Printing 80,000 levels overflows the stack.
TEST(Json, NestingHasALimit) {
  EXPECT_EQ(parse_json(nested(kDeepestJson), "x").dump(), nested(kDeepestJson));
  for (const size_t levels : {kDeepestJson + 1, size_t{1000000}}) {
    EXPECT_THAT(refusal(nested(levels)), HasSubstr("x.json: more than 100 lists and objects"));
  }
  std::string objects;
  for (int i = 0; i < 80000; ++i) objects += "{\"a\":[";
  EXPECT_THAT(refusal(objects), HasSubstr("x.json: more than 100 lists and objects"));
  // Beside each other they are not deep.
  EXPECT_EQ(refusal("[" + nested(90) + "," + nested(90) + "]"), "");
}

TEST(Json, AKeyMayBeThereOnce) {
  EXPECT_THAT(refusal(R"({"a": 1, "b": 2, "a": 1})"), HasSubstr("x.json: a is there twice"));
  EXPECT_THAT(refusal(R"({"train": {"c": {}, "steps": 1, "steps": 2}})"),
              HasSubstr("x.json: train.steps is there twice"));
  EXPECT_THAT(refusal(R"({"runs": [1, {"a": 1}, [{"a": 1, "\u0061": 2}]]})"),
              HasSubstr("x.json: runs[2][0].a is there twice"));
  EXPECT_EQ(refusal(R"({"a": {"a": 1}, "b": {"a": 1}, "A": 1, "list": [{"a": 1}, {"a": 1}]})"), "");
}

TEST(Json, NumbersFitIntoADouble) {
  EXPECT_THAT(refusal("{\n\"a\": 1e999}"),
              HasSubstr("x.json: line 2, column 10: the number 1e999 is too large"));
  EXPECT_THAT(refusal("-1e309"), HasSubstr("x.json: line 1, column 6: the number -1e309"));
  EXPECT_EQ(parse_json("[1e308, -1e308, 1e-999]", "x"), Json({1e308, -1e308, 0.0}));
}

TEST(Json, WholeNumbersHave64Bits) {
  const auto whole = [](const char* text) { return whole_number(parse_json(text, "x")); };
  EXPECT_EQ(whole("9223372036854775807"), INT64_MAX);
  EXPECT_EQ(whole("-9223372036854775808"), INT64_MIN);
  for (const char* other : {"9223372036854775808", "18446744073709551615", "18446744073709551616",
                            "-9223372036854775809", "1.0", "true", "\"1\"", "null"}) {
    EXPECT_EQ(whole(other), std::nullopt) << other;
  }
  EXPECT_STREQ(expected_whole_number(parse_json("1.5", "x")), "a whole number");
  EXPECT_THAT(expected_whole_number(parse_json("18446744073709551616", "x")), HasSubstr("2^63"));
}

TEST(Json, IsShownOnALine) {
  EXPECT_EQ(shown({{"a", "b\nc"}, {"d", {1, 2}}}), R"({"a":"b\nc","d":[1,2]})");
  EXPECT_EQ(shown("\xff"), "\"\uFFFD\"");
  const std::string list = shown(Json(std::vector<int>(100000, 7)));
  EXPECT_LE(list.size(), 130u);
  EXPECT_THAT(list, testing::StartsWith("[7,7,7"));
  EXPECT_THAT(list, testing::EndsWith("..."));
}

// The parser's own reason quotes the text.
TEST(Json, MessagesStayShort) {
  const std::string long_text(100000, 'x');
  EXPECT_LE(refusal("{\"a\": " + long_text).size(), 300u);
  EXPECT_LE(refusal("{\"a\": \"" + long_text).size(), 300u);
  EXPECT_LE(refusal("{\"" + long_text + "\":1,\"" + long_text + "\":2}").size(), 300u);
}

TEST(Json, DifferencesAreNamedWithTheirPath) {
  const Json run = {{"recipe", {{"name", "a"}, {"train", {{"steps", 10}, {"seed", 1}}}}},
                    {"data", {{"paths", {"text"}}, {"hash", "h"}}}};
  EXPECT_THAT(differences(run, run), IsEmpty());
  Json other = run;
  other["recipe"]["train"]["steps"] = 20;
  other["recipe"]["name"] = "b";
  EXPECT_THAT(differences(run, other),
              ElementsAre("recipe.name: \"a\" -> \"b\"", "recipe.train.steps: 10 -> 20"));
  // Keys that only one side has are told too.
  EXPECT_THAT(differences({{"a", 1}}, {{"b", 2}}), ElementsAre("a: 1 -> null", "b: null -> 2"));
  EXPECT_THAT(differences({{"a", {{"b", 1}}}}, {{"a", 3}}), ElementsAre("a: {\"b\":1} -> 3"));
}

TEST(Json, FilesAreNamed) {
  const std::string path = ::testing::TempDir() + "/broken.json";
  write_file(path, "{\n,");
  try {
    read_json(path);
    FAIL() << "read a broken file";
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr(path));
    EXPECT_THAT(e.what(), HasSubstr("line 2, column 1"));
  }
  EXPECT_THROW(read_json(path + ".missing"), Error);
}

}  // namespace
}  // namespace attnres::json_test
