// What a request's conversation is to the model's chat template.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "attnres/support/file.h"
#include "tests/serve/served.h"
#include "tests/text/test_files.h"

namespace attnres::conversation_request_test {
namespace {

using testing::Answer;
using ::testing::HasSubstr;
using testing::kModel;
using testing::Served;

// A model with this template, which shows what it is given.
class WithTemplate {
 public:
  WithTemplate(const std::string& name, const std::string& jinja)
      : served_({}, 1, folder_with(name, jinja)) {}

  Answer tokenize(const Json& fields) const {
    Json body = {{"messages", {{{"role", "user"}, {"content", "Hi"}}}}};
    body.update(fields);
    return served_.post("/tokenize", body);
  }
  // The prompt; what is wrong of one that is refused.
  std::string prompt(const Json& fields) const {
    const Answer answer = tokenize(fields);
    if (answer.status != 200) return answer.json()["error"]["message"];
    return served_.post("/detokenize", {{"tokens", answer.json()["tokens"]}}).json()["prompt"];
  }
  Served& served() const { return served_; }

 private:
  static std::string folder_with(const std::string& name, const std::string& jinja) {
    const std::filesystem::path folder = fresh_folder(name) / "model";
    std::filesystem::copy(kModel, folder);
    write_file(folder / "chat_template.jinja", jinja);
    return folder.string();
  }

  mutable Served served_;
};

constexpr const char* kShowsAll =
    "{{ messages | tojson }} {{ tools | tojson }} {{ documents | tojson }} "
    "{{ add_generation_prompt }}";

Json tool(const std::string& name) {
  return {{"type", "function"},
          {"function", {{"name", name}, {"parameters", {{"type", "object"}}}}}};
}
Json call(const Json& arguments) {
  return {
      {"id", "c1"}, {"type", "function"}, {"function", {{"name", "f"}, {"arguments", arguments}}}};
}
Json messages_with_call(const Json& arguments) {
  return {{{"role", "user"}, {"content", "Hi"}},
          {{"role", "assistant"}, {"content", nullptr}, {"tool_calls", {call(arguments)}}}};
}

TEST(ConversationRequest, GivesTheTemplateAll) {
  const WithTemplate model("conversation_all", kShowsAll);
  EXPECT_EQ(model.prompt(Json::object()), R"([{"role": "user", "content": "Hi"}] null null True)");
  EXPECT_EQ(
      model.prompt({{"tools", {tool("f")}},
                    {"documents", {{{"title", "d"}, {"pages", 2}}}},
                    {"add_generation_prompt", false}}),
      R"([{"role": "user", "content": "Hi"}] [{"type": "function", "function": {"name": "f", )"
      R"("parameters": {"type": "object"}}}] [{"title": "d", "pages": 2}] False)");
  const Json messages = Json::parse(R"([
      {"role": "user", "name": "Ann", "content": "Hi", "tool_calls": null},
      {"role": "assistant", "reasoning": "hm", "tool_calls": []},
      {"role": "tool", "tool_call_id": "c1", "content": "4", "extra": [1]}])");
  EXPECT_EQ(
      model.prompt({{"messages", messages}, {"tools", Json::array()}}),
      R"([{"role": "user", "name": "Ann", "content": "Hi"}, )"
      R"({"thinking": "hm", "role": "assistant", "reasoning": "hm", "content": "", )"
      R"("reasoning_content": "hm"}, )"
      R"({"role": "tool", "tool_call_id": "c1", "content": "4", "extra": [1]}] null null True)");
}

TEST(ConversationRequest, ReadsArgumentsOfCalls) {
  const WithTemplate model("conversation_calls", "{{ messages[1] | tojson }}");
  const std::string shown =
      R"({"role": "assistant", "tool_calls": [{"id": "c1", "type": "function", "function": )"
      R"({"name": "f", "arguments": {"b": 1, "a": [2.0]}}}], "content": ""})";
  for (const Json& arguments : {Json(R"({"b": 1, "a": [2.0]})"), Json{{"b", 1}, {"a", {2.0}}}}) {
    EXPECT_EQ(model.prompt({{"messages", messages_with_call(arguments)}}), shown);
  }
  EXPECT_THAT(model.prompt({{"messages", messages_with_call("")}}),
              HasSubstr(R"("arguments": {})"));
}

TEST(ConversationRequest, GivesArgumentsAsTextWhereTheTemplateWantsThat) {
  const WithTemplate model(
      "conversation_texts",
      "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ 'call ' + c.function.arguments }}"
      "{% endfor %}{{ raise_exception('no judges') if m.role == 'judge' }}{% endfor %}");
  EXPECT_EQ(model.prompt({{"messages", messages_with_call(R"({ "b":1 })")}}), R"(call { "b":1 })");
  EXPECT_THAT(model.prompt({{"messages", messages_with_call({{"b", 1}})}}),
              HasSubstr("between a str and a dict"));
  Json judged = messages_with_call(R"({"b": 1})");
  judged.insert(judged.begin(), Json({{"role", "judge"}, {"content", "x"}}));
  EXPECT_THAT(model.prompt({{"messages", judged}}), HasSubstr("no judges"));
}

TEST(ConversationRequest, RefusesWhatTheTemplateDoesNotRead) {
  const WithTemplate model("conversation_unread", "{{ messages[0].content }}");
  for (const auto& [field, value] :
       {std::pair{"tools", Json{tool("f")}}, std::pair{"documents", Json{{{"text", "d"}}}}}) {
    const Answer answer = model.tokenize({{field, value}});
    EXPECT_EQ(answer.code(), "unsupported");
    EXPECT_EQ(answer.param(), field);
  }
  EXPECT_EQ(model.prompt({{"tools", {tool("f")}}, {"tool_choice", "none"}}), "Hi");
}

TEST(ConversationRequest, ChoosesTools) {
  const WithTemplate model("conversation_tools", "{{ tools | tojson }}");
  const Json tools = {tool("f")};
  EXPECT_THAT(model.prompt({{"tools", tools}, {"tool_choice", "auto"}}), HasSubstr("\"f\""));
  EXPECT_EQ(model.prompt({{"tools", tools}, {"tool_choice", "none"}}), "null");
  const Answer unknown = model.tokenize({{"tools", tools}, {"tool_choice", "required"}});
  EXPECT_EQ(unknown.param(), "tool_choice");
  EXPECT_THAT(unknown.text, HasSubstr("writes no calls in a form that is known"));
  EXPECT_EQ(model.tokenize({{"tool_choice", "required"}}).param(), "tool_choice");
}

// A model is made to begin a call, as its template writes one, and goes on by itself.
TEST(ConversationRequest, MakesTheModelCall) {
  const WithTemplate model(
      "conversation_call",
      "{% if tools %}{% endif %}{% for m in messages %}{{ m.role }}:{{ m.content }}{% for c in "
      "m.tool_calls or [] %}"
      "<tool_call>\n{\"name\": \"{{ c.function.name }}\", \"arguments\": "
      "{{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}\n{% endfor %}"
      "{% if add_generation_prompt %}assistant:{% endif %}");
  const auto content = [&](const Json& choice) {
    const Answer answer = model.served().post(
        "/v1/chat/completions", {{"messages", {{{"role", "user"}, {"content", "<tool_call>g"}}}},
                                 {"tools", {tool("f"), tool("g")}},
                                 {"tool_choice", choice},
                                 {"max_tokens", 40},
                                 {"temperature", 0}});
    EXPECT_EQ(answer.status, 200) << answer.text;
    return answer.json()["choices"][0]["message"]["content"].get<std::string>();
  };
  const auto function = [](const std::string& name) {
    return Json{{"type", "function"}, {"function", {{"name", name}}}};
  };
  const std::string begin = "<tool_call>\n{\"name\": \"";
  EXPECT_TRUE(content(function("f")).starts_with(begin + "f\"")) << content(function("f"));
  EXPECT_TRUE(content(function("g")).starts_with(begin + "g\""));
  EXPECT_EQ(content(function("g")).size(), 40u);  // and goes on
  const std::string any = content("required");
  EXPECT_TRUE(any.starts_with(begin + "f\"") || any.starts_with(begin + "g\"")) << any;
  EXPECT_FALSE(content("auto").starts_with("<"));
  const Answer unknown = model.tokenize({{"tools", {tool("f")}}, {"tool_choice", function("h")}});
  EXPECT_EQ(unknown.param(), "tool_choice");
  EXPECT_THAT(unknown.text, HasSubstr("there is no tool"));
}

// Kimi K3's does.
TEST(ConversationRequest, TellsTheTemplateWhatTheAnswerHasToBe) {
  const WithTemplate model("conversation_choice",
                           "{% if tools %}{% endif %}{{ tool_choice | default('-') }} "
                           "{{ (response_format | default({})).type | default('-') }}");
  EXPECT_EQ(model.prompt(Json::object()), "- -");
  EXPECT_EQ(model.prompt({{"tools", {tool("f")}}, {"tool_choice", "none"}}), "none -");
  EXPECT_EQ(model.prompt({{"response_format", {{"type", "json_object"}}}}), "- json_object");
}

TEST(ConversationRequest, TellsHowMuchToThink) {
  const std::string shows =
      "{{ reasoning_effort | default('-') }} {{ thinking_effort | default('-') }} "
      "{{ enable_thinking | default('-') }} {{ thinking | default('-') }}";
  const WithTemplate all("conversation_efforts", shows);
  EXPECT_EQ(all.prompt(Json::object()), "- - - -");
  EXPECT_EQ(all.prompt({{"reasoning_effort", "low"}}), "low low True True");
  EXPECT_EQ(all.prompt({{"reasoning_effort", "none"}}), "none none False False");
  EXPECT_EQ(all.prompt({{"reasoning_effort", "max"},
                        {"chat_template_kwargs", {{"thinking", 1}, {"thinking_effort", nullptr}}}}),
            "max None True 1");
  const WithTemplate one("conversation_thinking", "{{ thinking | default('-') }}");
  EXPECT_EQ(one.prompt({{"reasoning_effort", "none"}}), "False");
  EXPECT_EQ(one.prompt({{"reasoning_effort", "high"}}), "True");
  const WithTemplate none("conversation_no_thinking", "{{ messages[0].thinking }}text");
  EXPECT_EQ(none.prompt({{"reasoning_effort", "none"}}), "text");
  const Answer refused = none.tokenize({{"reasoning_effort", "high"}});
  EXPECT_EQ(refused.code(), "unsupported");
  EXPECT_EQ(refused.param(), "reasoning_effort");
}

TEST(ConversationRequest, GoesOnWithTheLastMessage) {
  const WithTemplate model("conversation_goes_on",
                           "{% for m in messages %}<{{ m.content }}>{% endfor %}"
                           "{{ '<' if add_generation_prompt }}");
  EXPECT_EQ(model.prompt(Json::object()), "<Hi><");
  EXPECT_EQ(model.prompt({{"continue_final_message", true}}), "<Hi");
  EXPECT_THAT(model.prompt({{"continue_final_message", true}, {"add_generation_prompt", true}}),
              HasSubstr("leave one of them out"));
  Json body = {{"messages", {{{"role", "user"}, {"content", "Hi"}}}},
               {"continue_final_message", true},
               {"max_tokens", 1}};
  EXPECT_EQ(model.served().post("/v1/chat/completions", body).json()["usage"]["prompt_tokens"], 3);
}

TEST(ConversationRequest, RefusesWhatTheFieldsMayNotBe) {
  const WithTemplate model("conversation_refusals", kShowsAll);
  struct Case {
    const char* fields;
    const char *code, *message, *param;
  };
  for (const Case& c : std::vector<Case>{
           {R"({"tools": "f"})", "invalid_value", "a list of tools", "tools"},
           {R"({"tools": [{"type": "web"}]})", "invalid_value", "of type function", "tools"},
           {R"({"tools": [{"function": {}}]})", "invalid_value", "with a name", "tools"},
           {R"({"tools": [{"function": {"name": "f", "parameters": 1}}]})", "invalid_value",
            "parameters", "tools"},
           {R"({"tool_choice": "sometimes"})", "invalid_value",
            "none, auto, required or a function", "tool_choice"},
           {R"({"documents": ["d"]})", "invalid_value", "a list of objects", "documents"},
           {R"({"chat_template_kwargs": [1]})", "invalid_value", "an object",
            "chat_template_kwargs"},
           {R"({"chat_template_kwargs": {"tools": []}})", "invalid_value", "tools is a part",
            "chat_template_kwargs"},
           {R"({"reasoning_effort": "some"})", "invalid_value", "minimal, low", "reasoning_effort"},
           {R"({"add_generation_prompt": 1})", "invalid_value", "true or false",
            "add_generation_prompt"},
           {R"({"chat_template": "x"})", "unsupported", "chat_template", "chat_template"},
           {R"({"messages": [{"content": "a"}]})", "invalid_value", "a role", "messages"},
           {R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})",
            "invalid_value", "image_url", "messages"},
           {R"({"messages": [{"role": "user", "name": 1}]})", "invalid_value", "name", "messages"},
           {R"({"messages": [{"role": "user", "audio": {"id": 1}}]})", "unsupported", "audio",
            "messages"},
           {R"({"messages": [{"role": "tool", "tool_call_id": 1}]})", "invalid_value",
            "tool_call_id", "messages"},
           {R"({"messages": [{"role": "assistant", "tool_calls": {"id": 1}}]})", "invalid_value",
            "a list of calls", "messages"},
           {R"({"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}]})",
            "invalid_value", "tool_calls", "messages"},
           {R"({"messages": [{"role": "assistant", "tool_calls":
               [{"function": {"name": "f", "arguments": "{"}}]}]})",
            "invalid_value", "arguments: not valid JSON", "messages"},
           {R"({"messages": [{"role": "assistant", "tool_calls":
               [{"function": {"name": "f", "arguments": "[1]"}}]}]})",
            "invalid_value", "JSON of an object", "messages"}}) {
    const Answer answer = model.tokenize(Json::parse(c.fields));
    EXPECT_EQ(answer.status, 400) << c.fields;
    EXPECT_EQ(answer.code(), c.code) << c.fields;
    EXPECT_EQ(answer.param(), c.param) << c.fields;
    EXPECT_THAT(answer.text, HasSubstr(c.message)) << c.fields;
  }
}

}  // namespace
}  // namespace attnres::conversation_request_test
