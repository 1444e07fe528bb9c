#include "attnres/grammar/answer_schema.h"

#include <fmt/core.h>
#include <gmock/gmock.h>

#include <array>
#include <chrono>

#include "attnres/grammar/answer_grammars.h"
#include "attnres/support/error.h"
#include "attnres/support/random.h"
#include "attnres/text/bytes.h"
#include "attnres/text/passage.h"
#include "tests/grammar/language_walk.h"
#include "tests/grammar/listed_tokens.h"
#include "tests/grammar/plain_schema.h"
#include "tests/text/test_files.h"

namespace attnres::answer_schema_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::meets;
using ::testing::StartsWith;

// Byte pairs of JSON, so that tokens hold pieces of names, numbers and what is between them.
std::unique_ptr<Tokenizer> byte_pairs() {
  std::string text;
  for (int i = 0; i < 200; ++i) {
    text += R"({"name": "Ada", "age": )" + std::to_string(i) + R"(, "tags": ["x", "yes"], "id": )" +
            std::to_string(i * 7919) + "}\n  \"kind\": null, true, false }, {";
  }
  return make_tokenizer({"bpe", 400}, {{"json.txt", text}});
}

// A text whose tokens are drawn evenly among those that may come; empty where it has no end soon.
std::string drawn_text(const Tokenizer& tokenizer, const TokenConstraint& constraint,
                       uint64_t seed) {
  const RandomStream random(seed, "tokens");
  const auto state = constraint.start();
  std::string text;
  for (int64_t i = 0; i < 3000; ++i) {
    const AllowedTokens& allowed = state->allowed();
    if (allowed.none || (allowed.end && random.uniform(2 * i) < 0.3)) return text;
    std::vector<int32_t> tokens;
    for (int32_t token = 0; token < tokenizer.vocab_size(); ++token) {
      if (allowed[token]) tokens.push_back(token);
    }
    const int32_t token =
        tokens[static_cast<size_t>(random.uniform(2 * i + 1) * static_cast<double>(tokens.size()))];
    text += tokenizer.token_text(token);
    state->accept(token);
  }
  return "";
}

// Texts of a schema that end soon, all of which are JSON that meets it. How many there are.
int64_t check_texts(const Tokenizer& tokenizer, const Json& schema, int64_t tries) {
  AnswerGrammars grammars(tokenizer);
  const auto constraint =
      grammars.prepare({.kind = AnswerGrammar::Kind::json_schema, .text = schema.dump()});
  int64_t ended = 0;
  for (int64_t seed = 0; seed < tries; ++seed) {
    const std::string text = drawn_text(tokenizer, *constraint, seed);
    if (text.empty()) continue;
    ++ended;
    Json value;
    EXPECT_NO_THROW(value = Json::parse(text)) << schema << "\n" << text;
    EXPECT_TRUE(meets(schema, value)) << schema << "\n" << text;
  }
  return ended;
}

const std::vector<Json>& schemas() {
  static const std::vector<Json> all = [] {
    std::vector<Json> parsed;
    for (
        const char* text : {
            R"({"type": "object", "properties": {"name": {"type": "string"},
                 "age": {"type": "integer", "minimum": 0, "maximum": 120},
                 "tags": {"type": "array", "items": {"type": "string", "maxLength": 4}, "maxItems": 3}},
                 "required": ["name", "age"]})",
            R"({"type": ["integer", "null", "boolean"]})",
            R"({"type": "number"})",
            R"({"type": "number", "minimum": -2.5, "exclusiveMaximum": 17.25})",
            R"({"type": "integer", "exclusiveMinimum": 99, "maximum": 1000000007})",
            R"({"type": "integer", "multipleOf": 7, "minimum": -99, "maximum": 1000})",
            R"({"type": "integer", "maximum": -3})",
            R"({"type": "string"})",
            R"({"type": "string", "minLength": 3, "maxLength": 40})",
            R"({"type": "string", "pattern": "[^\"x]{2,5}x\\d{2,3}[ -~]"})",
            R"({"enum": ["a/b \"c\" é\n", 1.5, -7, null, true, ["x", {"k": 0.1}]]})",
            R"({"const": {"b": [1, 2], "a": "\u2028\\"}})",
            R"({"anyOf": [{"type": "null"}, {"type": "array", "items": {"enum": [1, 2]}, "minItems": 2}]})",
            R"({"oneOf": [{"type": "string", "maxLength": 2}, {"type": "boolean"}]})",
            R"({"allOf": [{"$ref": "#/$defs/size"}], "$defs": {"size": {"enum": ["S", "M"]}}})",
            R"({"type": "array", "prefixItems": [{"type": "boolean"}, {"const": 5}], "items": false})",
            R"({"type": "array", "items": {"type": "null"}, "minItems": 20, "maxItems": 30})",
            R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "null"},
                 "c\"d": {"type": "null"}, "e": {}}, "minProperties": 2, "maxProperties": 3})",
            R"({"type": "object", "properties": {"kind": {"const": "x"}},
                 "additionalProperties": {"type": "boolean"}})",
            R"({"type": "object", "additionalProperties": {"type": "integer", "minimum": 5}})",
            R"({"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "object", "properties": {
                 "value": {"type": "boolean"}, "next": {"anyOf": [{"$ref": "#/$defs/tree"},
                 {"type": "null"}]}}, "required": ["value", "next"]}}})",
            R"({"type": "object"})",
            R"({"type": "array"})",
            "{}"}) {
      parsed.push_back(Json::parse(text));
    }
    return parsed;
  }();
  return all;
}

TEST(AnswerSchema, EveryAnswerMeetsIt) {
  const ByteTokenizer bytes;
  const auto pairs = byte_pairs();
  for (const Json& schema : schemas()) {
    EXPECT_GT(check_texts(bytes, schema, 20), 0) << schema;
    EXPECT_GT(check_texts(*pairs, schema, 20), 0) << schema;
  }
}

TEST(AnswerSchema, ThePlainCheckTellsThemApart) {
  // No value of one schema that forbids another's meets it.
  EXPECT_FALSE(meets(schemas()[0], Json::parse(R"({"name": "a", "age": 121})")));
  EXPECT_FALSE(meets(schemas()[0], Json::parse(R"({"name": "a"})")));
  EXPECT_FALSE(meets(schemas()[0], Json::parse(R"({"name": "a", "age": 1, "tags": ["abcde"]})")));
  EXPECT_TRUE(meets(schemas()[0], Json::parse(R"({"name": "a", "age": 1, "tags": ["abcd"]})")));
  EXPECT_FALSE(meets(schemas()[9], Json("aax12")));
  EXPECT_FALSE(meets(schemas()[15], Json::parse("[true, 5, 6]")));
  EXPECT_FALSE(meets(schemas()[18], Json::parse(R"({"kind": "x", "other": 1})")));
}

TEST(AnswerSchema, TakesEveryValueThatIsWritten) {
  const ByteTokenizer tokenizer;
  AnswerGrammars grammars(tokenizer);
  const auto takes = [&](const std::string& schema, const std::string& text) {
    return testing::takes(
        *grammars.prepare({.kind = AnswerGrammar::Kind::json_schema, .text = schema}), text);
  };
  const std::string person = schemas()[0].dump();
  EXPECT_TRUE(takes(person, R"({"name": "Ada \u00e9 \\ \ud7ff", "age": 36})"));
  EXPECT_TRUE(takes(person, "{\n\"name\": \"\",\t\"age\" : 0, \"tags\":[ \"a\",\"bcde\" ]\n}"));
  EXPECT_FALSE(takes(person, R"({"age": 36, "name": "Ada"})"));  // the schema's order
  EXPECT_FALSE(takes(person, R"({"name": "Ada", "age": 36, "more": 1})"));
  EXPECT_FALSE(takes(person, R"({"name": "\ud83d", "age": 36})"));  // half of a pair
  EXPECT_FALSE(takes(person, R"({"name":  "Ada", "age": 36})"));
  EXPECT_TRUE(takes(R"({"type": "number"})", "-12.5e-7"));
  EXPECT_TRUE(takes(R"({"type": "integer", "minimum": 0.5, "exclusiveMaximum": 1.5})", "1"));
  EXPECT_FALSE(takes(R"({"type": "integer", "minimum": 0.5, "exclusiveMaximum": 1.5})", "0"));
  EXPECT_FALSE(takes(R"({"type": "integer", "minimum": 0.5, "exclusiveMaximum": 1.5})", "2"));
  EXPECT_FALSE(takes(R"({"type": "number"})", "1e999"));
  EXPECT_FALSE(takes(R"({"type": "string", "maxLength": 5})", "\"a\tb\""));
  // A name that has a schema is no other one, however it is written.
  const std::string open = schemas()[18].dump();
  EXPECT_TRUE(takes(open, R"({"kind": "x", "kin": true, "kinds": false})"));
  EXPECT_FALSE(takes(open, R"({"kind": "x", "kind": true})"));
  EXPECT_FALSE(takes(open, R"({"kind": "x", "\u006bind": true})"));
}

// As pydantic writes a union that tells its members by a field.
TEST(AnswerSchema, TellsObjectsByAProperty) {
  const ByteTokenizer tokenizer;
  const Json schema = Json::parse(R"({"oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}],
      "discriminator": {"mapping": {"cat": "#/$defs/Cat"}, "propertyName": "kind"}, "$defs": {
      "Cat": {"type": "object", "properties": {"kind": {"const": "cat"}, "lives": {"enum": [7, 9]}},
              "required": ["kind", "lives"]},
      "Dog": {"type": "object", "properties": {"kind": {"const": "dog"}, "good": {"const": true}},
              "required": ["kind"]}}})");
  EXPECT_GT(check_texts(tokenizer, schema, 20), 0);
  Json alike = schema;
  alike["$defs"]["Dog"]["required"] = Json::array({"good"});
  EXPECT_THAT(message_of<Error>([&] { answer_schema(alike, [](const Json&) {}); }),
              HasSubstr("several of them at once"));
}

// Texts of each format, many of them, and what is of none.
TEST(AnswerSchema, DatesAreOnesThatThereAre) {
  const ByteTokenizer tokenizer;
  AnswerGrammars grammars(tokenizer);
  const auto takes = [&](const std::string& format, const std::string& text) {
    const Json schema = {{"type", "string"}, {"format", format}};
    return testing::takes(
        *grammars.prepare({.kind = AnswerGrammar::Kind::json_schema, .text = schema.dump()}),
        '"' + text + '"');
  };
  int taken = 0;
  for (int month = 0; month <= 13; ++month) {
    for (int day = 0; day <= 32; ++day) {
      const std::string date = fmt::format("2025-{:02}-{:02}", month, day);
      const std::chrono::year_month_day calendar(std::chrono::year(2025), std::chrono::month(month),
                                                 std::chrono::day(day));
      EXPECT_EQ(takes("date", date), calendar.ok()) << date;
      taken += takes("date", date) ? 1 : 0;
    }
  }
  EXPECT_EQ(taken, 365);
  for (const auto& [format, right, wrong] : std::vector<std::array<const char*, 3>>{
           {"time", "23:59:59.25+01:00", "24:00:00Z"},
           {"time", "00:00:00Z", "10:00:60Z"},
           {"date-time", "1999-02-28T07:08:09Z", "2023-02-29T07:08:09Z"},
           {"duration", "P3DT4H5M6S", "P"},
           {"email", "ada.l@a-b.example.org", "ada@org"},
           {"hostname", "www.example.org", "-a.org"},
           {"ipv4", "255.0.10.9", "256.0.0.1"},
           {"ipv4", "1.2.3.4", "01.2.3.4"},
           {"ipv6", "0:1:abcd:0:0:0:0:1", "1::g"},
           {"uuid", "123e4567-e89b-42d3-a456-426614174000", "123e4567-e89b-42d3-c456-426614174000"},
           {"uuid1", "123e4567-e89b-12d3-a456-426614174000",
            "123e4567-e89b-42d3-a456-426614174000"},
           {"uri", "https://example.org/a/b?c=d", "example.org"},
           {"uri-reference", "/a/b", "a b"}}) {
    EXPECT_TRUE(takes(format, right)) << format << " " << right;
    EXPECT_FALSE(takes(format, wrong)) << format << " " << wrong;
  }
  // Of other texts a format says nothing.
  EXPECT_TRUE(takes("password", "a b"));
}

TEST(AnswerSchema, LeavesAnnotationsOut) {
  const Json given = Json::parse(R"({"title": "T", "type": "object", "x-order": 1, "properties": {
      "a": {"type": "string", "description": "d", "default": "e", "minimum": 3}}})");
  const Json expected = Json::parse(R"({"type": "object", "properties": {"a": {"type": "string"}},
      "additionalProperties": false})");
  EXPECT_EQ(answer_schema(given, [](const Json&) {}), expected);
}

TEST(AnswerSchema, RefusesByNameAndPlace) {
  const ByteTokenizer tokenizer;
  AnswerGrammars grammars(tokenizer);
  struct Case {
    const char *schema, *place, *message;
  };
  for (const Case& c : std::vector<Case>{
           {R"({"not": {"type": "null"}})", "#/not: ", "cannot be kept"},
           {R"({"type": "object", "properties": {"a": {"if": {}, "then": {}}}})",
            "#/properties/a/if: ", "cannot be kept"},
           {R"({"type": "object", "dependentSchemas": {}})", "#/dependentSchemas: ", ""},
           {R"({"type": "object", "dependentRequired": {}})", "#/dependentRequired: ", ""},
           {R"({"type": "object", "patternProperties": {}})", "#/patternProperties: ", ""},
           {R"({"type": "object", "propertyNames": {}})", "#/propertyNames: ", ""},
           {R"({"type": "array", "uniqueItems": true})", "#/uniqueItems: ", ""},
           {R"({"type": "array", "contains": {}})", "#/contains: ", ""},
           {R"({"items": {"type": "number", "multipleOf": 0.5, "minimum": 0, "maximum": 1}})",
            "#/items: ", "multipleOf"},
           {R"({"type": "integer", "multipleOf": 3, "minimum": 5})", "#/multipleOf: ", "a maximum"},
           {R"({"type": "integer", "multipleOf": 3, "minimum": 0, "maximum": 1000000000})",
            "#: ", "multipleOf"},
           {R"({"type": "string", "nullable": true})", "#/nullable: ", ""},
           {R"({"minLength": 3})", "#/minLength: ", "of which type"},
           {R"({"required": ["a"]})", "#/required: ", "of which type"},
           {R"({"type": "object", "required": ["a"]})", "#/required: ", "\"a\" is not among"},
           {R"({"type": "objekt"})", "#/type: ", "expected null, boolean"},
           {R"({"type": []})", "#/type: ", "expected a type"},
           {R"({"type": "object", "properties": {"a": false}})", "#/properties/a: ", "no value"},
           {"false", "#: ", "no value meets false"},
           {R"({"enum": []})", "#/enum: ", "expected a list of values"},
           {R"({"type": "string", "const": 5})", "#/const: ", "5 is not of type string"},
           {R"({"enum": ["a", 1], "type": ["string", "null"]})", "#/enum: ", "1 is not of type"},
           {R"({"const": 18446744073709551615})", "#/const: ", "63 bits"},
           {R"({"const": 1, "minimum": 0})", "#/minimum: ", "beside const"},
           {R"({"type": "object", "anyOf": [{"required": ["a"]}]})", "#/type: ", "beside anyOf"},
           {R"({"anyOf": []})", "#/anyOf: ", "expected a list"},
           {R"({"allOf": [{"type": "string"}, {"maxLength": 3}]})", "#/allOf: ", "several schemas"},
           {R"({"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 3}]})",
            "#/oneOf: ", "write anyOf"},
           {R"({"oneOf": [{"enum": [1, "a"]}, {"enum": ["a", null]}]})",
            "#/oneOf: ", "several of them at once"},
           {R"({"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}], "$defs": {"a": {}}})",
            "#/oneOf: ", "several of them at once"},
           {R"({"$ref": "#"})", "#: ", "without an end"},
           {R"({"properties": {"a": {"$ref": "#"}}, "required": ["a"]})", "#: ", "without an end"},
           {R"({"type": "array", "items": {"$ref": "#"}, "minItems": 1})", "#: ", "without an end"},
           {R"({"type": "number", "minimum": 2e-7, "maximum": 4e-7})", "#: ", "6 decimals"},
           {R"({"type": "integer", "minimum": 1e15})", "#: ", "there is no such number"},
           {R"({"type": "string", "format": "uri", "maxLength": 9})", "#/format: ", "characters"},
           {R"({"type": "string", "format": "date", "pattern": "a"})", "#/format: ", "a pattern"},
           {R"({"type": "integer", "minimum": 5, "maximum": 3})", "#: ", "minimum greater"},
           {R"({"type": "number", "minimum": "a"})", "#/minimum: ", "expected a number"},
           {R"({"type": "string", "minLength": 5, "maxLength": 3})", "#/minLength: ", "more than"},
           {R"({"type": "string", "maxLength": 5000000})", "#/maxLength: ", "from 0 to"},
           {R"({"type": "string", "minLength": -1})", "#/minLength: ", "from 0 to"},
           {R"({"type": "string", "pattern": "(a)\\1"})", "#/pattern: position 4: ", "references"},
           {R"({"items": {"type": "string", "pattern": "(?=a)b"}})",
            "#/items/pattern: position 1: ", "looking around"},
           {R"({"type": "string", "pattern": "a", "maxLength": 3})", "#/pattern: ", "beside"},
           {R"({"type": "string", "format": "json-pointer"})", "#/format: ", "expected one of"},
           {R"({"type": "array", "prefixItems": [{}, {}], "maxItems": 1})", "#/maxItems: ", "less"},
           {R"({"type": "object", "minProperties": 2})", "#/minProperties: ", "no names"},
           {R"({"properties": {"a": {}}, "minProperties": 2})", "#/minProperties: ", "there are 1"},
           {R"({"$ref": "other.json"})", "#/$ref: ", "a place in this schema"},
           {R"({"$ref": "#/$defs/a"})", "#/$ref: ", "no schema at #/$defs/a"},
           {R"({"$ref": "#/$defs/a", "$defs": {"a": {}}, "maxLength": 3})",
            "#/maxLength: ", "beside $ref"},
           {R"({"properties": 5})", "#/properties: ", "an object of schemas"},
           {R"([])", "#: ", "expected a schema"}}) {
    EXPECT_THAT(message_of<Error>([&] {
                  grammars.prepare({.kind = AnswerGrammar::Kind::json_schema, .text = c.schema});
                }),
                AllOf(StartsWith(c.place), HasSubstr(c.message)))
        << c.schema;
  }
}

TEST(AnswerSchema, RefusesWhatGrowsBeyondItsText) {
  const ByteTokenizer tokenizer;
  AnswerGrammars grammars(tokenizer);
  const auto error = [&](const Json& schema) {
    return message_of<Error>([&] {
      grammars.prepare({.kind = AnswerGrammar::Kind::json_schema, .text = schema.dump()});
    });
  };
  Json deep = {{"type", "string"}};
  for (int i = 0; i < 60; ++i) deep = {{"type", "array"}, {"items", deep}};
  EXPECT_THAT(error(deep), ::testing::AnyOf(HasSubstr("nested deeper"), HasSubstr("deeper than")));
  Json many = {{"type", "object"}, {"minProperties", 200}};
  for (int i = 0; i < 400; ++i) many["properties"]["p" + std::to_string(i)] = {{"type", "null"}};
  EXPECT_THAT(error(many), HasSubstr("too many properties to count"));
  many.erase("minProperties");
  EXPECT_NO_THROW(
      grammars.prepare({.kind = AnswerGrammar::Kind::json_schema, .text = many.dump()}));
  Json values = {{"enum", Json::array()}};
  for (int i = 0; i < 2001; ++i) values["enum"].push_back(i);
  EXPECT_THAT(error(values), HasSubstr("more than 2000 schemas and values"));
}

}  // namespace
}  // namespace attnres::answer_schema_test
