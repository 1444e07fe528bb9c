#include "attnres/support/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace attnres::config_test {
namespace {
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

struct Inner {
  int64_t steps = 10;
  template <class V>
  void visit(V& v) {
    v("steps", steps);
  }
};

struct Outer {
  bool flag = false;
  int64_t whole = 1;
  double real = 0.5;
  std::string text = "a";
  std::vector<std::string> list;
  Json free = Json::object();
  NamedNumbers numbers;
  Inner train;
  template <class V>
  void visit(V& v) {
    v("flag", flag);
    v("whole", whole);
    v("real", real);
    v("text", text);
    v("list", list);
    v("free", free);
    v("numbers", numbers);
    v("train", train);
  }
};

Outer read(const std::string& text) {
  Outer out;
  read_config(Json::parse(text), "", out);
  return out;
}

std::string refusal(const std::string& text) {
  try {
    read(text);
  } catch (const UsageError& e) {
    return e.what();
  }
  return "";
}

TEST(Config, ReadsEveryTypeAndKeepsDefaults) {
  const Outer out = read(
      R"({"flag": true, "whole": 7, "real": 2, "text": "b", "list": ["x", "y"],
          "free": {"any": 1}, "numbers": {"y.*": 2, "x": 0.5}, "train": {"steps": 3}})");
  EXPECT_TRUE(out.flag);
  EXPECT_EQ(out.whole, 7);
  EXPECT_EQ(out.real, 2);
  EXPECT_EQ(out.text, "b");
  EXPECT_THAT(out.list, ElementsAre("x", "y"));
  EXPECT_EQ(out.free.at("any"), 1);
  EXPECT_THAT(out.numbers, ElementsAre(Pair("y.*", 2), Pair("x", 0.5)));
  EXPECT_EQ(out.train.steps, 3);
  EXPECT_EQ(read("{}").train.steps, 10);
}

TEST(Config, WritingAndReadingAgree) {
  const Json written = write_config(read(R"({"whole": 7, "train": {"steps": 3}})"));
  EXPECT_EQ(written.dump(), R"({"flag":false,"whole":7,"real":0.5,"text":"a","list":[],"free":{},)"
                            R"("train":{"steps":3}})");
  EXPECT_EQ(write_config(read(written.dump())), written);
}

TEST(Config, WritesNumbersByNameInTheirOrderAndNoneAtAll) {
  const std::string text = R"({"numbers":{"y":2.0,"x":0.5}})";
  EXPECT_EQ(write_config(read(text))["numbers"], Json::parse(text)["numbers"]);
  EXPECT_FALSE(write_config(read(R"({"numbers": {}})")).contains("numbers"));
}

TEST(Config, UnknownKeyNamesTheNearest) {
  EXPECT_THAT(refusal(R"({"hole": 1})"),
              HasSubstr("unknown key hole: the nearest known key is whole"));
  EXPECT_THAT(refusal(R"({"train": {"stepps": 1}})"),
              HasSubstr("unknown key train.stepps: the nearest known key is train.steps"));
}

TEST(Config, WrongTypesAreNamed) {
  EXPECT_THAT(refusal(R"({"flag": 1})"), HasSubstr("flag: expected true or false, got 1"));
  EXPECT_THAT(refusal(R"({"whole": 1.5})"), HasSubstr("whole: expected a whole number, got 1.5"));
  EXPECT_THAT(refusal(R"({"real": "1"})"), HasSubstr("real: expected a number, got \"1\""));
  EXPECT_THAT(refusal(R"({"text": null})"), HasSubstr("text: expected text, got null"));
  EXPECT_THAT(refusal(R"({"list": ["a", 1]})"), HasSubstr("list: expected text, got 1"));
  EXPECT_THAT(refusal(R"({"free": 3})"), HasSubstr("free: expected an object"));
  EXPECT_THAT(refusal(R"({"numbers": [1]})"), HasSubstr("numbers: expected an object of numbers"));
  EXPECT_THAT(refusal(R"({"numbers": {"a": 1, "b.c": "d"}})"),
              HasSubstr("numbers.b.c: expected a number, got \"d\""));
  EXPECT_THAT(refusal(R"({"train": []})"), HasSubstr("train: expected an object"));
  EXPECT_THAT(refusal("[]"), HasSubstr("configuration: expected an object"));
}

// 1e19 and 2^63 fit no int64_t; silently wrapped they would be negative.
TEST(Config, WholeNumbersThatDoNotFitAreRefused) {
  EXPECT_THAT(refusal(R"({"whole": 9223372036854775808})"),
              HasSubstr("whole: expected a whole number between -2^63 and 2^63, got"));
  EXPECT_EQ(read(R"({"whole": 9223372036854775807})").whole, INT64_MAX);
}

struct Limited {
  int64_t whole = 2;
  double open = 0.25;
  double above = 1;
  std::string word = "one";
  NumberOrWord scale = 1;
  std::vector<std::string> words = {"one"};
  NamedNumbers numbers;
  std::string needed;
  Inner inner;
  template <class V>
  void visit(V& v) {
    v("whole", whole, "a count", from_to(1, 3));
    v("open", open, "a part", fraction_below_one());
    v("above", above, "a number", more_than(0));
    v("word", word, "a word", one_of({{"one"}, {"two", "the second"}, {"three"}}));
    v("scale", scale, "a factor", more_than(0).or_one_of({{"auto", "as the width"}, {"learned"}}));
    v("words", words, "words", one_of({"one", "two"}));
    v("numbers", numbers, "some", at_least(0));
    v("needed", needed, "a text", required());
    v("inner", inner, "the part inside");
  }
};

TEST(Config, LimitsAreKept) {
  const auto refused = [](Json json) -> std::string {
    Limited out;
    if (!json.contains("inner")) json["needed"] = "x";
    try {
      read_config(json, "part", out);
    } catch (const UsageError& e) {
      return e.what();
    }
    return "";
  };
  for (const char* text :
       {R"({"whole": 1})", R"({"whole": 3})", R"({"open": 0})", R"({"above": 1e-300})",
        R"({"word": "two"})", R"({"scale": 0.5})", R"({"scale": 2})", R"({"scale": "learned"})",
        R"({"words": ["two", "one"]})", R"({"numbers": {"a": 0}})"}) {
    EXPECT_EQ(refused(Json::parse(text)), "");
  }
  const std::vector<std::pair<const char*, const char*>> cases = {
      {R"({"whole": 0})", "part.whole: expected a whole number from 1 to 3, got 0"},
      {R"({"whole": 4})", "part.whole: expected a whole number from 1 to 3, got 4"},
      {R"({"open": 1})", "part.open: expected 0 or more and below 1, got 1"},
      {R"({"open": -0.5})", "part.open: expected 0 or more and below 1, got -0.5"},
      {R"({"above": 0})", "part.above: expected more than 0, got 0"},
      {R"({"word": "twoo"})",
       "part.word: expected one, two (the second) or three, got twoo: did you mean two?"},
      {R"({"scale": 0})",
       "part.scale: expected more than 0, or auto (as the width) or learned, got 0"},
      {R"({"scale": "learnt"})",
       "part.scale: expected more than 0, or auto (as the width) or learned, got learnt: did you "
       "mean learned?"},
      {R"({"scale": true})", "part.scale: expected a number or a word, got true"},
      {R"({"scale": ""})", "part.scale: expected a number or a word, got \"\""},
      {R"({"words": ["one", "six hundred"]})", "part.words: expected one or two, got six hundred"},
      {R"({"numbers": {"a": 1, "b": -1}})", "part.numbers.b: expected 0 or more, got -1"},
      {R"({"inner": {}})", "part: it has no \"needed\""},
  };
  for (const auto& [text, message] : cases) EXPECT_EQ(refused(Json::parse(text)), message);
  EXPECT_EQ(refused({{"above", INFINITY}}), "part.above: expected more than 0, got inf");
}

TEST(Config, ListsItsKeysWithWhatIsSaidOfThem) {
  const std::vector<ConfigKey> keys = list_keys(Limited());
  ASSERT_EQ(keys.size(), 9u);
  EXPECT_EQ(keys[0].name, "whole");
  EXPECT_EQ(keys[0].type, KeyType::whole);
  EXPECT_EQ(keys[0].meaning, "a count");
  EXPECT_EQ(keys[0].standard, "2");
  EXPECT_EQ(keys[0].limits.most, 3);
  EXPECT_EQ(keys[4].standard, "1.0");
  EXPECT_EQ(keys[5].standard, R"(["one"])");
  EXPECT_TRUE(keys[7].limits.required);
  EXPECT_EQ(keys[8].keys.at(0).name, "steps");
}

TEST(Config, WritesANumberOrAWordAsItWasRead) {
  for (const Json& value : {Json(0.25), Json("auto")}) {
    Limited read;
    read_config({{"needed", "x"}, {"scale", value}}, "", read);
    EXPECT_EQ(write_config(read).at("scale"), value);
  }
  Limited read;
  read.scale.word = "auto";
  read_config({{"needed", "x"}, {"scale", 2}}, "", read);
  EXPECT_EQ(write_config(read).at("scale"), 2.0);
}

// By which editors find what a file may hold.
TEST(Config, AFileMayNameItsSchema) {
  EXPECT_EQ(read(R"({"$schema": "some.json", "whole": 7})").whole, 7);
  EXPECT_THAT(refusal(R"({"$schema": 3})"), HasSubstr("$schema: expected text, got 3"));
  EXPECT_THAT(refusal(R"({"train": {"$schema": "some.json"}})"),
              HasSubstr("unknown key train.$schema"));
}

TEST(Override, SetsJsonOrText) {
  Json config = Json::parse(R"({"train": {"steps": 1}, "name": "x"})");
  for (const char* assignment :
       {"train.steps=200", "name=a b=c", "model.depth_mixing.type=attn_res", "list=[\"a\"]",
        "quoted=\"7\"", "empty="}) {
    apply_override(config, assignment);
  }
  EXPECT_EQ(config.dump(),
            R"({"train":{"steps":200},"name":"a b=c","model":{"depth_mixing":{"type":"attn_res"}},)"
            R"("list":["a"],"quoted":"7","empty":""})");
}

TEST(Config, LongValuesAndKeysAreCut) {
  const std::string text(100000, 'x');
  EXPECT_LE(refusal("{\"whole\": \"" + text + "\"}").size(), 200u);
  EXPECT_LE(refusal("{\"" + text + "\": 1}").size(), 250u);
  EXPECT_LE(refusal("{\"numbers\": {\"" + text + "\": false}}").size(), 250u);
}

TEST(Override, RefusesJsonThatAFileMayNotHold) {
  Json config = Json::object();
  const auto refused = [&](const std::string& assignment) {
    try {
      apply_override(config, assignment);
    } catch (const UsageError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_THAT(refused(R"(model={"a": {"b": 1, "b": 2}})"),
              HasSubstr("--set model: a.b is there twice"));
  EXPECT_THAT(refused("model=" + std::string(1000, '[') + std::string(1000, ']')),
              HasSubstr("--set model: more than 100"));
  std::string deep = "a";
  for (int i = 0; i < 100000; ++i) deep += ".a";
  const std::string message = refused(deep + "=1");
  EXPECT_THAT(message, HasSubstr("more than 100 keys"));
  EXPECT_LE(message.size(), 250u);
  EXPECT_TRUE(config.empty());
}

TEST(Override, NamesWhatHasNoKeys) {
  const auto refused = [](Json config, const char* assignment) {
    try {
      apply_override(config, assignment);
    } catch (const UsageError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_EQ(refused({{"name", "x"}}, "name.first=1"),
            "--set name.first=1: name is not an object with keys");
  EXPECT_EQ(refused(Json::array({1}), "a=1"),
            "--set a=1: the configuration is not an object with keys");
  EXPECT_EQ(refused({}, ".a=1"), "--set .a=1: a key is missing beside a dot");
}

TEST(Override, RefusesWhatMakesNoSense) {
  Json config = Json::parse(R"({"name": "x"})");
  for (const char* assignment : {"steps", "=1", "name.first=1", "a..b=1", ".a=1", "a.=1"}) {
    EXPECT_THROW(apply_override(config, assignment), UsageError) << assignment;
  }
}

}  // namespace
}  // namespace attnres::config_test
