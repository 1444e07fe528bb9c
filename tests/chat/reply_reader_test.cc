#include "attnres/chat/reply_reader.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "attnres/chat/chat_template.h"

namespace attnres {
namespace {

// Bytes, and control tokens of these names.
class NamedTokens : public Tokenizer {
 public:
  explicit NamedTokens(std::set<std::string> names) : names_(std::move(names)) {}

  std::string kind() const override { return "bytes"; }
  int64_t vocab_size() const override { return 256; }
  int32_t end_of_document() const override { return 0; }
  bool needs_utf8() const override { return false; }
  std::vector<int32_t> encode(std::string_view text) const override {
    return {text.begin(), text.end()};
  }
  std::string token_text(int32_t id) const override { return {static_cast<char>(id)}; }
  std::optional<int32_t> control_token(std::string_view name) const override {
    return names_.contains(std::string(name)) ? std::optional(0) : std::nullopt;
  }
  void save(const std::filesystem::path&) const override {}

 protected:
  std::string definition() const override { return ""; }

 private:
  std::set<std::string> names_;
};

// All of an answer; calls as NAME, or ID NAME, and their arguments.
struct Read {
  std::string thought, answer;
  std::vector<std::pair<std::string, std::string>> calls;

  void add(const std::vector<ReplyPiece>& pieces) {
    for (const ReplyPiece& piece : pieces) {
      switch (piece.kind) {
        case ReplyPiece::Kind::thought:
          thought += piece.text;
          break;
        case ReplyPiece::Kind::answer:
          answer += piece.text;
          break;
        case ReplyPiece::Kind::call:
          EXPECT_EQ(piece.call, std::ssize(calls));
          calls.emplace_back((piece.id.empty() ? "" : piece.id + " ") + piece.text, "");
          break;
        case ReplyPiece::Kind::arguments:
          calls.at(piece.call).second += piece.text;
          break;
      }
    }
  }
  bool operator==(const Read&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Read& read) {
  out << "thought {" << read.thought << "} answer {" << read.answer << "}";
  for (const auto& [name, arguments] : read.calls) out << " " << name << "(" << arguments << ")";
  return out;
}

const Json kTools = Json::parse(R"([{"type": "function", "function": {"name": "weather",
  "parameters": {"type": "object", "properties": {
    "city": {"type": "string"}, "days": {"type": "integer"}, "tags": {"type": "array"}}}}}])");

// In pieces of so many bytes; control tokens by themselves.
Read read_in_pieces(const ReplyPlan& plan, const NamedTokens& tokenizer, std::string_view reply,
                    size_t bytes) {
  ReplyReader reader(plan, tokenizer);
  Read read;
  std::string text;
  const auto flush = [&] { read.add(reader.add(std::exchange(text, ""))); };
  while (!reply.empty()) {
    size_t name = 0;  // of a control token that is next
    if (reply[0] == '<' && reply.find('>') != reply.npos) {
      const size_t end = reply.find('>') + 1;
      if (tokenizer.control_token(reply.substr(0, end))) name = end;
    }
    if (name > 0) {
      flush();
      read.add(reader.add_control(reply.substr(0, name)));
    } else {
      text += reply[0];
      if (text.size() == bytes) flush();
    }
    reply.remove_prefix(std::max<size_t>(name, 1));
  }
  flush();
  read.add(reader.finish());
  return read;
}

Read read_reply(const std::string& jinja, const std::string& prompt, const std::string& reply,
                const std::set<std::string>& names = {}, const Json& tools = kTools) {
  const ReplyPlan plan = plan_reply(reply_format_of(jinja), {{prompt}}, tools);
  const NamedTokens tokenizer(names);
  const Read whole = read_in_pieces(plan, tokenizer, reply, reply.size() + 1);
  for (const size_t bytes : {1, 2, 3, 7, 16}) {
    EXPECT_EQ(read_in_pieces(plan, tokenizer, reply, bytes), whole) << "in pieces of " << bytes;
  }
  return whole;
}

const std::string kQwen = "... <think> ... </think> ... <tool_call>";

TEST(ReplyReader, WhatHasNoFormIsTextAsItComes) {
  const std::string reply = " \n <think>no</think> <tool_call>{}</tool_call> \n\n";
  EXPECT_EQ(read_reply("{{ messages }}", "Assistant:", reply), (Read{"", reply, {}}));
}

TEST(ReplyReader, AThoughtEndsWhereTheModelEndsIt) {
  EXPECT_EQ(
      read_reply(kQwen, "<|im_start|>assistant\n", "<think>\nTwo and two.\n</think>\n\nFour."),
      (Read{"Two and two.", "Four.", {}}));
  // Begun by the prompt, closed by it, and never closed.
  EXPECT_EQ(read_reply(kQwen, "assistant\n<think>\n", "Two.\n\n</think>\n\nFour.\n"),
            (Read{"Two.", "Four.\n", {}}));
  EXPECT_EQ(read_reply(kQwen, "assistant\n<think>\n\n</think>\n\n", "Four."),
            (Read{"", "Four.", {}}));
  EXPECT_EQ(read_reply(kQwen, "assistant\n<think>\n", "Two and </thin"),
            (Read{"Two and </thin", "", {}}));
}

TEST(ReplyReader, AMarkWithinAnAnswerIsText) {
  EXPECT_EQ(read_reply(kQwen, "", "Write <think> first, then </think>."),
            (Read{"", "Write <think> first, then </think>.", {}}));
  // In a conversation without tools so are calls.
  EXPECT_EQ(
      read_reply(kQwen, "", "<tool_call>{\"name\": \"weather\"}</tool_call>", {}, Json::array()),
      (Read{"", "<tool_call>{\"name\": \"weather\"}</tool_call>", {}}));
}

TEST(ReplyReader, WhatSomebodyWroteInThePromptBeginsNothing) {
  const ReplyPlan plan = plan_reply(reply_format_of(kQwen),
                                    {{"user: "}, {"<think>", true}, {"\nassistant: "}}, kTools);
  EXPECT_EQ(plan.within, ReplyPlan::Within::answer);
}

TEST(ReplyReader, Hermes) {
  EXPECT_EQ(
      read_reply(kQwen, "",
                 "Let me see.\n\n<tool_call>\n{\"name\": \"weather\", \"arguments\": "
                 "{\"city\": \"São Paulo\", \"days\": 2}}\n</tool_call>\n<tool_call>\n"
                 "{\"name\": \"now\", \"arguments\": {}}\n</tool_call>"),
      (Read{"", "Let me see.", {{"weather", R"({"city":"São Paulo","days":2})"}, {"now", "{}"}}}));
}

TEST(ReplyReader, WhatIsNoCallIsText) {
  for (const std::string reply :
       {"<tool_call>weather in Rome</tool_call> then", "<tool_call>{\"name\": 3}</tool_call>",
        "<tool_call>[1]</tool_call>", "<tool_call>\n{\"name\": \"weather\", \"argum"}) {
    EXPECT_EQ(read_reply(kQwen, "", reply), (Read{"", reply, {}}));
  }
}

// Writing JSON again takes a call for each level.
TEST(ReplyReader, WhatAModelNestsWithoutAnEndIsText) {
  const std::string reply = "<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": " +
                            std::string(1'000'000, '[') + std::string(1'000'000, ']') +
                            "}}</tool_call>";
  const ReplyPlan plan = plan_reply(reply_format_of(kQwen), {{""}}, kTools);
  EXPECT_EQ(read_in_pieces(plan, NamedTokens({}), reply, 4096), (Read{"", reply, {}}));
}

TEST(ReplyReader, QwenTags) {
  const std::string jinja = kQwen + " <function= ";
  EXPECT_EQ(
      read_reply(jinja, "<think>\n",
                 "hm\n</think>\n\n<tool_call>\n<function=weather>\n<parameter=city>\n12\n"
                 "</parameter>\n<parameter=days>\n3\n</parameter>\n<parameter=tags>\n"
                 "[\"a\", 1]\n</parameter>\n<parameter=other>\nno JSON\n\n</parameter>\n"
                 "</function>\n</tool_call>"),
      (Read{"hm",
            "",
            {{"weather", R"({"city": "12", "days": 3, "tags": ["a",1], "other": "no JSON\n"})"}}}));
  EXPECT_EQ(read_reply(jinja, "", "<tool_call>\n<function=now>\n</function>\n</tool_call>"),
            (Read{"", "", {{"now", "{}"}}}));
}

TEST(ReplyReader, Glm) {
  const std::string jinja = kQwen + "<arg_key>";
  const Read expected = {"", "", {{"weather", R"({"city": "7", "days": 2})"}}};
  EXPECT_EQ(read_reply(jinja, "",
                       "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>7</arg_value>\n"
                       "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>"),
            expected);
  EXPECT_EQ(read_reply(jinja, "",
                       "<tool_call>weather<arg_key>city</arg_key><arg_value>7</arg_value>"
                       "<arg_key>days</arg_key><arg_value>2</arg_value></tool_call>"),
            expected);
  EXPECT_EQ(read_reply(jinja, "", "<tool_call>now</tool_call>"), (Read{"", "", {{"now", "{}"}}}));
}

TEST(ReplyReader, KimiK2) {
  const std::string jinja = "<think></think> <|tool_calls_section_begin|>";
  const std::set<std::string> names = {"<|tool_calls_section_begin|>", "<|tool_calls_section_end|>",
                                       "<|tool_call_begin|>", "<|tool_call_argument_begin|>",
                                       "<|tool_call_end|>"};
  const std::string reply =
      "<think>so</think>I ask.<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0"
      "<|tool_call_argument_begin|>{\"city\": \"Rome\"}<|tool_call_end|><|tool_call_begin|>"
      "functions.now:1<|tool_call_argument_begin|><|tool_call_end|><|tool_calls_section_end|>";
  const Read expected = {
      "so",
      "I ask.",
      {{"functions.weather:0 weather", "{\"city\": \"Rome\"}"}, {"functions.now:1 now", "{}"}}};
  EXPECT_EQ(read_reply(jinja, "", reply, names), expected);
  EXPECT_EQ(read_reply(jinja, "", reply), expected);  // of a model whose tokens are bytes
}

TEST(ReplyReader, AMarkThatIsAControlTokenIsNotReadFromText) {
  const std::string jinja = "<|tool_calls_section_begin|>";
  const ReplyPlan plan = plan_reply(reply_format_of(jinja), {}, kTools);
  const NamedTokens tokenizer({"<|tool_calls_section_begin|>"});
  ReplyReader reader(plan, tokenizer);
  Read read;
  read.add(reader.add("say <|tool_calls_section_begin|> twice"));
  read.add(reader.add_control("<|end|>"));  // one that marks nothing here
  read.add(reader.add("."));
  read.add(reader.finish());
  EXPECT_EQ(read, (Read{"", "say <|tool_calls_section_begin|> twice.", {}}));
}

TEST(ReplyReader, KimiK3) {
  const std::string jinja = "{{ '<|open|>' ~ tag }} 'think'";
  const std::set<std::string> names = {"<|open|>", "<|sep|>", "<|close|>"};
  const std::string begun = "<|open|>message role=\"assistant\"<|sep|><|open|>think<|sep|>";
  EXPECT_EQ(
      read_reply(
          jinja, begun,
          "first<|close|>think<|sep|><|open|>response<|sep|>I ask.<|close|>response<|sep|>"
          "<|open|>tools<|sep|><|open|>call tool=\"weather\" index=\"1\"<|sep|>"
          "<|open|>argument key=\"city\" type=\"string\"<|sep|>Rome\n<|close|>argument<|sep|>"
          "<|open|>argument key=\"a &quot;b&quot;\" type=\"object\"<|sep|>{\"c\": [1]}"
          "<|close|>argument<|sep|><|close|>call<|sep|>"
          "<|open|>call tool=\"x\" index=\"2\"<|sep|><|open|>json type=\"object\"<|sep|>"
          "{\"y\": 1}<|close|>json<|sep|><|close|>call<|sep|><|close|>tools<|sep|>"
          "<|close|>message<|sep|>",
          names),
      (Read{"first",
            "I ask.",
            {{"weather", R"({"city": "Rome\n", "a \"b\"": {"c":[1]}})"}, {"x", "{\"y\": 1}"}}}));
  EXPECT_EQ(read_reply(jinja, "<|open|>response<|sep|>", "Yes.<|close|>response<|sep|>", names),
            (Read{"", "Yes.", {}}));
}

TEST(ReplyReader, DeepSeek) {
  const std::string v31 = "<think></think><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>";
  EXPECT_EQ(read_reply(v31, "<think>",
                       "a</think>b<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>"
                       "{\"days\": 1}<｜tool▁call▁end｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}"
                       "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"),
            (Read{"a", "b", {{"weather", "{\"days\": 1}"}, {"now", "{}"}}}));
  EXPECT_EQ(read_reply(v31 + "```json", "",
                       "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n"
                       "```json\n{\"days\": 1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"),
            (Read{"", "", {{"weather", "{\"days\": 1}"}}}));
  for (const std::string section : {"function_calls", "tool_calls"}) {
    EXPECT_EQ(
        read_reply(
            "<think></think> '｜DSML｜' " + section, "",
            fmt::format("b\n\n<｜DSML｜{0}>\n<｜DSML｜invoke name=\"weather\">\n"
                        "<｜DSML｜parameter name=\"city\" string=\"true\">1</｜DSML｜parameter>\n"
                        "<｜DSML｜parameter name=\"days\" string=\"false\">1</｜DSML｜parameter>\n"
                        "</｜DSML｜invoke>\n</｜DSML｜{0}>",
                        section)),
        (Read{"", "b", {{"weather", R"({"city": "1", "days": 1})"}}}));
  }
}

// A mark is searched once in each byte: a long value costs as much a byte as a short one.
TEST(ReplyReader, LongValuesTakeTimeInProportion) {
  const ReplyPlan plan = plan_reply(reply_format_of(kQwen + "<function="), {}, kTools);
  const NamedTokens tokenizer({});
  ReplyReader reader(plan, tokenizer);
  Read read;
  read.add(reader.add("<tool_call><function=weather><parameter=city>"));
  const std::string text(2'000'000, '<');
  for (size_t i = 0; i < text.size(); i += 4) read.add(reader.add(text.substr(i, 4)));
  read.add(reader.add("</parameter></function></tool_call>"));
  EXPECT_EQ(read.calls.at(0).second.size(), text.size() + std::string(R"({"city": ""})").size());
}

}  // namespace
}  // namespace attnres
