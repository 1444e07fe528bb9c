// Conversations with all that they may have, by templates of the shape of Qwen 3's, Kimi K2's, Kimi
// K3's and DeepSeek V3.1's (tests/fixtures/conversation_cases.json; its texts are transformers',
// which tests/clients/chat_template_check.py renders again).
#include "attnres/chat/conversation.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "attnres/chat/call_beginning.h"
#include "attnres/chat/chat_template.h"
#include "attnres/support/error.h"

namespace attnres::conversation_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string lines_of(const Json& lines) {
  std::string text;
  for (size_t i = 0; i < lines.size(); ++i)
    text += (i > 0 ? "\n" : "") + lines[i].get<std::string>();
  return text;
}

std::string rendered(const ChatTemplate& chat, const Json& conversation) {
  std::string text;
  for (const ChatPart& part : chat.rendered(parse_conversation(conversation.dump()))) {
    text += part.text;
  }
  return text;
}
std::string rendered(const std::string& jinja, const Json& conversation) {
  return rendered(ChatTemplate(jinja), conversation);
}

// What was written in brackets.
std::string marked(const std::string& jinja, const Json& conversation) {
  std::string text;
  for (const ChatPart& part :
       ChatTemplate(jinja).rendered(parse_conversation(conversation.dump()))) {
    text += part.written ? "[" + part.text + "]" : part.text;
  }
  return text;
}

std::string refusal(const std::string& jinja, const Json& conversation) {
  try {
    return "took it: " + rendered(jinja, conversation);
  } catch (const Error& e) {
    return e.what();
  }
}

Json message(const std::string& role, const Json& content) {
  return {{"role", role}, {"content", content}};
}
Json of_messages(const std::vector<Json>& messages, const Json& more = Json::object()) {
  Json conversation = {{"messages", messages}};
  conversation.update(more);
  return conversation;
}
Json part(const std::string& text) {
  return {{"type", "text"}, {"text", text}};
}

TEST(Conversation, IsRenderedAsByTransformers) {
  const Json cases = read_json(ATTNRES_SOURCE_DIR "/tests/fixtures/conversation_cases.json");
  const ChatTokens tokens = {.begin = cases["tokens"]["bos_token"],
                             .end = cases["tokens"]["eos_token"]};
  ASSERT_GT(cases["renders"].size(), 50);
  int taken = 0, refused = 0;
  for (const Json& expected : cases["renders"]) {
    const std::string name = expected[0], conversation = expected[1];
    const ChatTemplate chat(lines_of(cases["templates"][name]), tokens);
    std::string got;
    try {
      got = rendered(chat, cases["conversations"][conversation]);
      EXPECT_FALSE(expected[2].is_null()) << name << ": " << conversation;
      ++taken;
    } catch (const Error& e) {
      got = e.what();
      EXPECT_TRUE(expected[2].is_null()) << name << ": " << conversation << ": " << got;
      ++refused;
    }
    if (!expected[2].is_null()) {
      EXPECT_EQ(got, lines_of(expected[2])) << name << ": " << conversation;
    }
  }
  EXPECT_GT(taken, 40);
  EXPECT_GT(refused, 4);
}

TEST(Conversation, KeepsTheOrderOfKeysAndTheKindsOfNumbers) {
  const Json tools = Json::array({Json::parse(
      R"({"z": 1, "a": {"y": 1.0, "b": [true, null, -3, 1e20, 9007199254740993]}, "c": "é"})")});
  EXPECT_EQ(
      rendered("{{ tools | tojson }}", of_messages({message("user", "")}, {{"tools", tools}})),
      R"([{"z": 1, "a": {"y": 1.0, "b": [true, null, -3, 1e+20, 9007199254740993]}, "c": "é"}])");
}

TEST(Conversation, GivesWhatIsAskedForByNames) {
  const Json conversation =
      of_messages({message("user", "Hi")},
                  {{"documents", {{{"title", "T"}, {"text", "a text"}}}},
                   {"chat_template_kwargs", {{"mood", {{"kind", "good"}}}, {"bos_token", "<b>"}}},
                   {"add_generation_prompt", false}});
  EXPECT_EQ(rendered("{{ bos_token }} {{ tools }} {{ documents[0].text }} {{ mood.kind }} "
                     "{{ add_generation_prompt }} {{ other is defined }}",
                     conversation),
            "<b> None a text good False False");
  const ChatTemplate chat(
      "{% if mood %}{{ x.thinking }}{{ f(only_a_keyword=effort) }}{% endif %}{# comment #}text");
  for (const char* name : {"mood", "effort", "x"}) EXPECT_TRUE(chat.names().contains(name));
  for (const char* name : {"thinking", "only_a_keyword", "comment", "text"}) {
    EXPECT_FALSE(chat.names().contains(name)) << name;
  }
}

// Nothing that somebody wrote can become a control token, wherever it stands.
TEST(Conversation, TellsWhatWasWritten) {
  const Json conversation = of_messages(
      {message("user", Json::array({part("a"), part("b")})),
       {{"role", "judge"}, {"content", "c"}, {"name", "N"}, {"tool_calls", {{{"id", "i"}}}}}},
      {{"tools", {{{"k", "v"}}}}, {"chat_template_kwargs", {{"x", "y"}}}});
  EXPECT_EQ(marked("{% for m in messages %}<{{ m.role }}>{{ m.content }};{{ m.name }}{% for c in "
                   "m.tool_calls or [] %}{{ c.id }}{% endfor %}{% endfor %} {{ tools | tojson }} "
                   "{% for key in tools[0] %}{{ key }}{% endfor %} {{ x }}",
                   conversation),
            "<user>[ab];<[judge]>[c];[Ni] [{\"[k]\": \"[v]\"}] [k] [y]");
}

TEST(Conversation, JoinsPartsWhereTheTemplateTakesNone) {
  const Json conversation =
      of_messages({message("user", Json::array({part("one,"), part(" two")}))});
  EXPECT_EQ(rendered("{{ messages[0].content }}.", conversation), "one, two.");
  EXPECT_EQ(rendered("{{ 'Say: ' + messages[0].content }}", conversation), "Say: one, two");
  const std::string counts =
      "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
      "{% for p in m.content %}{{ '/' if not loop.first }}{{ p.text }}{% endfor %}{% endif %}"
      "{% endfor %}";
  EXPECT_EQ(rendered(counts, conversation), "one,/ two");
  EXPECT_EQ(rendered(ChatTemplate(), conversation), "User: one, two\nAssistant:");
  EXPECT_EQ(joined_parts(Json::array({part("a"), {{"type", "image"}}})), std::nullopt);
  EXPECT_EQ(joined_parts("a"), std::nullopt);
  EXPECT_EQ(joined_parts(Json::array()), "");
}

TEST(Conversation, HasDevelopersWhereTheTemplateDoes) {
  const Json conversation = of_messages({message("developer", "a")});
  EXPECT_EQ(rendered("{{ messages[0].role }}", conversation), "system");
  EXPECT_EQ(rendered("{{ messages[0].role }}{{ '' if 'developer' else '' }}", conversation),
            "developer");
  EXPECT_EQ(rendered(ChatTemplate(), conversation), "a\n\nAssistant:");
}

TEST(Conversation, GoesOnWithTheLastMessage) {
  const std::string closes =
      "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
      "{% if add_generation_prompt %}<assistant>{% endif %}";
  const std::string trims = "{% for m in messages %}<{{ m.content | trim }}>{% endfor %}";
  const auto goes_on = [](const Json& content) {
    return of_messages({message("user", "a "), message("assistant", content)},
                       {{"continue_final_message", true}});
  };
  EXPECT_EQ(rendered(closes, goes_on("b ")), "<user>a </><assistant>b ");
  EXPECT_EQ(rendered(trims, goes_on("b \n")), "<a><b");
  EXPECT_EQ(rendered(closes, goes_on(Json::array({part("b"), part(" c")}))),
            "<user>a </><assistant>b c");
  EXPECT_EQ(rendered(ChatTemplate(), goes_on("b ")), "User: a \nAssistant: b ");
  EXPECT_THAT(refusal("{{ messages[0].content }}", goes_on("b")),
              HasSubstr("is not in the prompt"));
  EXPECT_THAT(refusal("{{ messages[1].content[1:] }}", goes_on("b")),
              HasSubstr("is not in the prompt"));
  EXPECT_THAT(refusal(closes, goes_on(nullptr)), HasSubstr("no text to go on with"));
}

TEST(Conversation, IsPlainWithoutATemplate) {
  const Json user = message("user", "a");
  for (const auto& [more, why] :
       {std::pair<Json, const char*>{{{"tools", {{{"type", "function"}}}}}, "tools"},
        {{{"documents", {{{"text", "d"}}}}}, "documents"}}) {
    EXPECT_THAT(refusal("", of_messages({user}, more)),
                AllOf(HasSubstr("no chat template"), HasSubstr(why)));
  }
  Json calls = message("assistant", "b");
  calls["tool_calls"] = {{{"id", "1"}}};
  EXPECT_THAT(refusal("", of_messages({user, calls})), HasSubstr("tool calls"));
  EXPECT_THAT(refusal("", of_messages({message("tool", "a")})), HasSubstr("\"tool\""));
  EXPECT_THAT(refusal("", of_messages({message("user", 1)})), HasSubstr("content"));
  EXPECT_EQ(rendered(ChatTemplate(), of_messages({user, message("assistant", nullptr)},
                                                 {{"add_generation_prompt", false}})),
            "User: a\nAssistant: \n");
}

TEST(Conversation, RefusesWhatIsNone) {
  const std::vector<Json> user(1, message("user", "a"));
  const auto refused = [](const Json& conversation) { return refusal("x", conversation); };
  EXPECT_EQ(refused(of_messages(user)), "took it: x");
  EXPECT_THAT(refused(Json::array()), HasSubstr("expected a JSON object"));
  EXPECT_THAT(refused(Json::object()), HasSubstr("messages: there are none"));
  EXPECT_THAT(refused({{"messages", "a"}}), HasSubstr("messages: expected a list of objects"));
  EXPECT_THAT(refused({{"messages", {{{"content", "a"}}}}}), HasSubstr("with a role"));
  EXPECT_THAT(refused(of_messages(user, {{"model", "m"}})), HasSubstr("there is no \"model\""));
  EXPECT_THAT(refused(of_messages(user, {{"tools", {1}}})), HasSubstr("tools: expected a list"));
  EXPECT_THAT(refused(of_messages(user, {{"documents", "a"}})), HasSubstr("documents: expected"));
  EXPECT_THAT(refused(of_messages(user, {{"add_generation_prompt", 1}})),
              HasSubstr("add_generation_prompt: expected true or false"));
  EXPECT_THAT(refused(of_messages(user, {{"chat_template_kwargs", {1}}})),
              HasSubstr("chat_template_kwargs: expected an object"));
  EXPECT_THAT(refused(of_messages(user, {{"chat_template_kwargs", {{"messages", 1}}}})),
              HasSubstr("chat_template_kwargs: messages is a part"));
  EXPECT_THAT(refused(of_messages(
                  user, {{"add_generation_prompt", true}, {"continue_final_message", true}})),
              HasSubstr("continue_final_message: the last message is continued, or another"));
}

TEST(Conversation, HasToCallOneOfAFew) {
  Json conversation = of_messages({message("user", "Hi")}, {{"tool_choice", "required"}});
  const auto add_tool = [&](const std::string& name) {
    conversation["tools"].push_back({{"function", {{"name", name}}}});
  };
  for (int i = 0; i < 128; ++i) add_tool("f" + std::to_string(i));
  EXPECT_EQ(parse_conversation(conversation.dump()).must_call.size(), 128u);
  add_tool("g");
  EXPECT_THAT(refusal("{{ tools }}", conversation), HasSubstr("takes 128 tools at most, got 129"));
  conversation["tool_choice"] = {{"type", "function"}, {"function", {{"name", "g"}}}};
  EXPECT_EQ(parse_conversation(conversation.dump()).must_call, std::vector<std::string>{"g"});
}

// As each template writes an answer that calls; the forms' marks are those of the models.
TEST(Conversation, TellsHowACallBegins) {
  const Json tools = Json::parse(R"([{"type": "function", "function": {"name": "name"}}])");
  const auto begins = [&](const std::string& calls) {
    const std::string jinja =
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% for c in m.tool_calls or [] %}" +
        calls + "{% endfor %}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}";
    Conversation conversation;
    conversation.messages = Json::parse(R"([{"role": "user", "content": "<tool_call>name"}])");
    conversation.tools = tools;
    try {
      return call_beginning(ChatTemplate(jinja), conversation, "name");
    } catch (const Error& e) {
      return std::string(e.what());
    }
  };
  const std::string call = "{{ c.function.name }}", of_json = R"({"name": "{{ c.function.name }}")";
  EXPECT_EQ(begins("thus <tool_call>\n" + of_json + ", \"arguments\": {}}\n</tool_call>"),
            "<tool_call>\n{\"name\": \"name\"");
  EXPECT_EQ(begins("<tool_call>\n<function=" + call + ">\n</function>\n</tool_call>"),
            "<tool_call>\n<function=name>");
  EXPECT_EQ(begins("<tool_call>" + call + "\n{# <arg_key> #}</tool_call>"), "<tool_call>name\n");
  EXPECT_EQ(begins("<tool_call>" + call + "{# <arg_key> #}</tool_call>\n"), "<tool_call>name");
  EXPECT_EQ(begins("<|tool_calls_section_begin|><|tool_call_begin|>{{ c.id }}"
                   "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>"),
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.name:");
  EXPECT_EQ(begins("{# 'think' #}<|open|>tools<|sep|><|open|>call tool=\"" + call +
                   "\" index=\"1\"<|sep|><|close|>call<|sep|>"),
            "<|open|>tools<|sep|><|open|>call tool=\"name\" index=\"1\"<|sep|>");
  EXPECT_THAT(begins(call), HasSubstr("no calls in a form that is known"));
  EXPECT_THAT(begins("{# <tool_call> #}" + call), HasSubstr("writes no call of name"));
}

}  // namespace
}  // namespace attnres::conversation_test
