// Answers that are kept to a form, by every field that asks for one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <regex>
#include <string>
#include <vector>

#include "attnres/support/file.h"
#include "tests/serve/served.h"
#include "tests/text/test_files.h"

namespace attnres::answer_format_test {
namespace {

using testing::Answer;
using ::testing::HasSubstr;
using testing::Served;

constexpr const char* kSchema = R"({"type": "object", "properties": {"n": {"type": "integer",
    "minimum": 10, "maximum": 99}, "b": {"type": "boolean"}}, "required": ["n", "b"]})";

bool is_of_schema(const std::string& text) {
  const Json value = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  return value.is_object() && value.size() == 2 && value["n"].is_number_integer() &&
         value["n"] >= 10 && value["n"] <= 99 && value["b"].is_boolean();
}

class AnswerFormat : public ::testing::Test {
 protected:
  Answer complete(const Json& fields) {
    Json body = {{"prompt", "KING"}, {"max_tokens", 200}, {"seed", 3}};
    body.update(fields);
    return served_.post("/v1/completions", body);
  }
  Answer chat(const Json& fields) {
    Json body = {{"messages", {{{"role", "user"}, {"content", "KING"}}}}, {"max_tokens", 200}};
    body.update(fields);
    return served_.post("/v1/chat/completions", body);
  }
  // Of both endpoints.
  std::vector<std::string> texts(const std::string& fields) {
    const Answer completed = complete(Json::parse(fields)), chatted = chat(Json::parse(fields));
    EXPECT_EQ(completed.status, 200) << completed.text;
    EXPECT_EQ(chatted.status, 200) << chatted.text;
    if (completed.status != 200 || chatted.status != 200) return {};
    const Json of_text = completed.json()["choices"][0], of_chat = chatted.json()["choices"][0];
    EXPECT_EQ(of_text["finish_reason"], "stop") << fields;
    EXPECT_EQ(of_chat["finish_reason"], "stop") << fields;
    return {of_text["text"], of_chat["message"]["content"]};
  }

  Served served_;
};

TEST_F(AnswerFormat, IsAskedForByManyFields) {
  const std::string schema = kSchema;
  for (
      const std::string& fields : std::vector<std::string>{
          R"({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": true,
               "schema": )" +
              schema + "}}}",
          R"({"response_format": {"type": "json_object", "schema": )" + schema + "}}",
          R"({"structured_outputs": {"json": )" + schema + "}}",
          R"({"guided_json": )" + schema + "}", R"({"json_schema": )" + schema + "}",
          Json{{"guided_json", schema}}.dump()}) {
    for (const std::string& text : texts(fields)) EXPECT_TRUE(is_of_schema(text)) << fields << text;
  }
  for (const char* fields :
       {R"({"structured_outputs": {"regex": "[xy]{2}z"}})", R"({"guided_regex": "[xy]{2}z"})",
        R"({"guided_grammar": "root ::= [xy] [xy] \"z\""})",
        R"({"grammar": "root ::= [xy] [xy] \"z\""})",
        R"({"structured_outputs": {"grammar": "root ::= [xy]{2} \"z\""}})",
        R"({"guided_choice": ["xxz", "yyz"]})",
        R"({"structured_outputs": {"choice": ["xyz", "yxz"], "json": null}})"}) {
    for (const std::string& text : texts(fields)) {
      EXPECT_TRUE(std::regex_match(text, std::regex("[xy]{2}z"))) << fields << text;
    }
  }
  for (const char* fields : {R"({"response_format": {"type": "json_object"}})",
                             R"({"structured_outputs": {"json_object": true}})"}) {
    const Answer answer = complete(Json::parse(fields));
    const Json choice = answer.json()["choices"][0];
    const std::string text = choice["text"];
    EXPECT_EQ(text[0], '{') << text;
    EXPECT_TRUE(choice["finish_reason"] != "stop" || Json::parse(text).is_object()) << text;
  }
}

TEST_F(AnswerFormat, IsNoneWhereNothingIsAsked) {
  const std::string free = complete(Json::object()).json()["choices"][0]["text"];
  EXPECT_FALSE(is_of_schema(free));
  for (const char* fields : {R"({"response_format": {"type": "text"}})", R"({"grammar": ""})",
                             R"({"structured_outputs": {}, "guided_json": null})",
                             R"({"structured_outputs": {"json_object": false}})"}) {
    EXPECT_EQ(complete(Json::parse(fields)).json()["choices"][0]["text"], free) << fields;
  }
}

TEST_F(AnswerFormat, IsTheSameStreamed) {
  const Json fields = {{"guided_json", Json::parse(kSchema)}, {"stream", true}};
  std::string text;
  for (const std::string& event : complete(fields).events()) {
    if (event != "[DONE]") text += Json::parse(event)["choices"][0]["text"].get<std::string>();
  }
  EXPECT_TRUE(is_of_schema(text)) << text;
}

TEST_F(AnswerFormat, IsKeptByEachOfManyAnswers) {
  const Json fields = {{"guided_json", Json::parse(kSchema)}, {"n", 4}};
  const Json choices = complete(fields).json()["choices"];
  ASSERT_EQ(choices.size(), 4u);
  for (const Json& choice : choices) EXPECT_TRUE(is_of_schema(choice["text"])) << choice;
}

// The thought is free, and so is what comes with tools: a form is of what is said.
TEST(AnswerFormatOfAChat, IsThatOfWhatIsSaid) {
  const auto message = [](const std::string& jinja, const Json& fields) {
    const std::filesystem::path folder = fresh_folder("format") / "model";
    std::filesystem::copy(testing::kModel, folder);
    write_file(folder / "chat_template.jinja", jinja);
    Served served({}, 1, folder.string());
    Json body = {{"messages", {{{"role", "user"}, {"content", "KING"}}}},
                 {"max_tokens", 20},
                 {"temperature", 0},
                 {"guided_regex", "[xy]{2}z"}};
    body.update(fields);
    const Answer answer = served.post("/v1/chat/completions", body);
    EXPECT_EQ(answer.status, 200) << answer.text;
    return answer.json()["choices"][0]["message"];
  };
  const std::regex form("[xy]{2}z");
  const std::string speaks = "{% if tools %}{% endif %}{{ messages[0].content }}: ";
  const Json thinking = message(speaks + "<think>{# </think> #}", Json::object());
  EXPECT_EQ(thinking["reasoning_content"].get<std::string>().size(), 20u) << thinking;
  EXPECT_FALSE(std::regex_match(thinking["reasoning_content"].get<std::string>(), form));
  const Json tools = {{{"type", "function"}, {"function", {{"name", "f"}}}}};
  for (const Json& fields : {Json::object(), Json{{"tools", tools}}}) {
    const Json said = message(speaks + "<think></think>{# <tool_call> #}", fields);
    EXPECT_TRUE(std::regex_match(said["content"].get<std::string>(), form)) << said;
  }
  // Made to, it begins to call.
  const Json calls =
      message(speaks + "{# <tool_call> #}",
              {{"tools", tools}, {"logit_bias", {{std::to_string('<'), 100}}}, {"max_tokens", 13}});
  EXPECT_EQ(calls["content"], "<tool_call><<");
}

TEST_F(AnswerFormat, SaysWhatIsWrong) {
  struct Case {
    const char *fields, *message, *param;
    const char* code = "invalid_value";
  };
  for (const Case& c : std::vector<Case>{
           {R"({"response_format": "json"})", "response_format: expected an object",
            "response_format"},
           {R"({"response_format": {"type": "xml"}})", "text, json_object or json_schema",
            "response_format"},
           {R"({"response_format": {"type": "json_schema"}})", "an object with a schema",
            "response_format"},
           {R"({"response_format": {"type": "json_schema", "json_schema": {"schema": {
               "type": "array", "uniqueItems": true}}}})",
            "response_format: #/uniqueItems: ", "response_format"},
           {R"({"guided_json": {"not": {}}})", "guided_json: #/not: ", "guided_json"},
           {R"({"guided_json": 5})", "a JSON schema", "guided_json"},
           {R"({"guided_choice": []})", "a list of texts", "guided_choice"},
           {R"({"structured_outputs": {"choice": []}})", "a list of texts", "structured_outputs"},
           {R"({"guided_choice": ""})", "", ""},
           {R"({"guided_choice": "a"})", "a list of texts", "guided_choice"},
           {R"({"guided_choice": [1]})", "expected a text", "guided_choice"},
           {R"({"guided_regex": "(a"})", "position", "guided_regex"},
           {R"({"grammar": "root = 5"})", "grammar: line 1: expected ::=", "grammar"},
           {R"({"grammar": "root ::= \"a\"", "guided_regex": "a"})", "beside guided_regex",
            "grammar"},
           {R"({"structured_outputs": {"regex": "a", "choice": ["a"]}})", "leave one out",
            "structured_outputs"},
           {R"({"structured_outputs": {"structural_tag": "a"}})", "this server has json",
            "structured_outputs", "unsupported"},
           {R"({"guided_whitespace_pattern": "a"})", "guided_whitespace_pattern",
            "guided_whitespace_pattern", "unsupported"}}) {
    const Answer answer = complete(Json::parse(c.fields));
    if (*c.message == '\0') {
      EXPECT_EQ(answer.status, 200) << c.fields;
      continue;
    }
    ASSERT_EQ(answer.status, 400) << c.fields << answer.text;
    EXPECT_EQ(answer.code(), c.code) << answer.text;
    EXPECT_THAT(answer.json()["error"]["message"].get<std::string>(), HasSubstr(c.message));
    EXPECT_EQ(answer.param().substr(0, answer.param().find('.')), c.param) << answer.text;
  }
}

}  // namespace
}  // namespace attnres::answer_format_test
