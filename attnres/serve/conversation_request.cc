#include "attnres/serve/conversation_request.h"

#include <fmt/core.h>

#include <algorithm>
#include <exception>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "attnres/chat/conversation.h"
#include "attnres/serve/absent_fields.h"
#include "attnres/serve/api_error.h"
#include "attnres/support/error.h"

namespace attnres {
namespace {

constexpr const char* kContent = "messages: content";
constexpr const char* kCalls = "messages: tool_calls";

// A text, or a list of parts of type text.
void check_content(const Json& content) {
  if (content.is_null() || content.is_string() || joined_parts(content)) return;
  if (!content.is_array()) refuse(kContent, "a text", content);
  for (const Json& part : content) {
    if (!joined_parts(Json::array({part}))) refuse(kContent, "parts of type text", part);
  }
}

void check_text(const Json& object, const char* name, const char* field) {
  const Json value = object.value(name, Json());
  if (!value.is_null() && !value.is_string()) {
    refuse(field, fmt::format("a text as {}", name), object);
  }
}

// {"type": "function", "function": {"name": ..}}; the type may be left out.
void check_function(const Json& object, const char* field) {
  constexpr const char* kExpected = "objects of type function, and a function with a name";
  const bool sound = object.is_object() && object.value("type", Json("function")) == "function" &&
                     object.value("function", Json()).is_object() &&
                     object["function"].value("name", Json()).is_string();
  if (!sound) refuse(field, kExpected, object);
}

// The object that a call's arguments say.
Json read_arguments(const Json& call) {
  const Json given = call["function"].value("arguments", Json());
  if (given.is_object()) return given;
  if (given.is_null() || given == Json("")) return Json::object();
  Json read;
  try {
    if (given.is_string()) read = parse_json(given.get_ref<const std::string&>(), "arguments");
  } catch (const Error& e) {
    refuse_as("invalid_value", kCalls, e.what());
  }
  if (!read.is_object()) refuse(kCalls, "arguments that are JSON of an object", call);
  return read;
}

void check_calls(const Json& calls) {
  if (!calls.is_array()) refuse(kCalls, "a list of calls", calls);
  for (const Json& call : calls) {
    check_function(call, kCalls);
    check_text(call, "id", kCalls);
  }
}

Json read_message(const Json& given) {
  if (!given.is_object() || !given.value("role", Json()).is_string()) {
    refuse("messages", "objects with a role and a content", given);
  }
  refuse_absent_of_message(given);
  Json message = Json::object();
  auto& members = message.get_ref<Json::object_t&>();  // to add to without a search for each name
  for (const auto& [name, value] : given.items()) {
    const bool no_calls = name == "tool_calls" && means_nothing(value);
    if (!value.is_null() && !no_calls) members.emplace_back(name, value);
  }
  check_content(message.value("content", Json()));
  for (const char* name : {"name", "tool_call_id", "reasoning_content", "reasoning", "thinking"}) {
    check_text(message, name, "messages");
  }
  if (message.contains("tool_calls")) check_calls(message["tool_calls"]);
  // Some templates fail without it.
  if (!message.contains("content")) message["content"] = "";
  return message;
}

Json read_messages(const JsonFields& fields) {
  const Json& given = fields.find("messages");
  if (!given.is_array() || given.empty()) refuse("messages", "a list of messages", given);
  Json messages = Json::array();
  for (const Json& message : given) messages.push_back(read_message(message));
  return messages;
}

// A template that does not read what it is given leaves it out.
void require_read(const char* field, const Backend& backend) {
  const ModelDescription& model = backend.model();
  const std::vector<std::string>& names = model.chat_names;
  if (model.chat_template != "jinja") return;  // others refuse it themselves
  if (std::find(names.begin(), names.end(), field) != names.end()) return;
  refuse_unsupported(field, fmt::format("this model's chat template does not tell it of {}; leave "
                                        "them out",
                                        field));
}

Json read_tools(const JsonFields& fields, const Backend& backend) {
  const Json& tools = fields.find("tools");
  if (means_nothing(tools)) return nullptr;
  if (!tools.is_array()) refuse("tools", "a list of tools", tools);
  for (const Json& tool : tools) {
    check_function(tool, "tools");
    const Json parameters = tool["function"].value("parameters", Json());
    if (!parameters.is_null() && !parameters.is_object()) {
      refuse("tools", "parameters that are an object", tool);
    }
  }
  if (fields.find("tool_choice") != "none") require_read("tools", backend);
  return tools;
}

Json read_tool_choice(const JsonFields& fields) {
  const Json& choice = fields.find("tool_choice");
  const bool is_word =
      choice.is_null() || choice == "none" || choice == "auto" || choice == "required";
  if (choice.is_object()) {
    check_function(choice, "tool_choice");
  } else if (!is_word) {
    refuse("tool_choice", "none, auto, required or a function", choice);
  }
  return choice;
}

Json read_documents(const JsonFields& fields, const Backend& backend) {
  const Json& documents = fields.find("documents");
  if (means_nothing(documents)) return nullptr;
  const bool sound = documents.is_array() &&
                     std::all_of(documents.begin(), documents.end(),
                                 [](const Json& document) { return document.is_object(); });
  if (!sound) refuse("documents", "a list of objects", documents);
  require_read("documents", backend);
  return documents;
}

// What the template is told of how much to think.
void add_effort(const JsonFields& fields, const Backend& backend, Json* arguments) {
  const std::string effort = fields.text("reasoning_effort", "");
  if (effort.empty()) return;
  constexpr const char* kEfforts[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
  if (std::find(std::begin(kEfforts), std::end(kEfforts), effort) == std::end(kEfforts)) {
    refuse("reasoning_effort", "none, minimal, low, medium, high, xhigh or max", effort);
  }
  const Json thinks = effort != "none";
  const std::pair<const char*, Json> kVariables[] = {{"reasoning_effort", effort},
                                                     {"thinking_effort", effort},
                                                     {"enable_thinking", thinks},
                                                     {"thinking", thinks}};
  const std::vector<std::string>& names = backend.model().chat_names;
  bool taken = effort == "none";
  for (const auto& [name, value] : kVariables) {
    if (std::find(names.begin(), names.end(), name) == names.end()) continue;
    taken = true;
    if (!arguments->contains(name)) (*arguments)[name] = value;
  }
  if (!taken) {
    refuse_unsupported("reasoning_effort",
                       fmt::format("this model's chat template is not told how much to think, got "
                                   "{}; leave it out",
                                   effort));
  }
}

Json read_chat_arguments(const JsonFields& fields, const Backend& backend) {
  const Json& given = fields.find("chat_template_kwargs");
  Json arguments = given.is_null() ? Json::object() : given;
  constexpr const char* kField = "chat_template_kwargs";
  try {
    check_arguments(arguments, kField);
  } catch (const Error& e) {
    throw ApiError(400, "invalid_value", e.what(), kField);
  }
  add_effort(fields, backend, &arguments);
  // What Kimi K3's template tells the model of.
  const std::vector<std::string>& names = backend.model().chat_names;
  for (const char* name : {"tool_choice", "response_format"}) {
    const bool is_read = std::find(names.begin(), names.end(), name) != names.end();
    const Json& value = fields.find(name);
    if (is_read && !value.is_null() && !arguments.contains(name)) arguments[name] = value;
  }
  return arguments;
}

// Whether there were any that came as JSON.
bool read_call_arguments(Json* messages) {
  bool any = false;
  for (Json& message : *messages) {
    if (!message.contains("tool_calls")) continue;
    for (Json& call : message["tool_calls"]) {
      Json read = read_arguments(call);
      Json& arguments = call["function"]["arguments"];
      any = any || arguments.is_string();
      arguments = std::move(read);
    }
  }
  return any;
}

// All but the messages.
Json read_template_fields(const JsonFields& fields, const Backend& backend) {
  const bool continues = fields.flag("continue_final_message", false);
  return {{"tools", read_tools(fields, backend)},
          {"tool_choice", read_tool_choice(fields)},
          {"documents", read_documents(fields, backend)},
          {"chat_template_kwargs", read_chat_arguments(fields, backend)},
          {"continue_final_message", continues},
          {"add_generation_prompt", fields.flag("add_generation_prompt", !continues)}};
}

[[noreturn]] void refuse_conversation(const std::string& why) {
  const std::string choice = "tool_choice: ";
  if (why.starts_with(choice)) refuse_as("invalid_value", "tool_choice", why.substr(choice.size()));
  refuse_as("invalid_value", "messages", why);
}

}  // namespace

void check_template_fields(const JsonFields& fields, const Backend& backend) {
  read_template_fields(fields, backend);
}

TextRequest read_conversation(const JsonFields& fields, const Backend& backend) {
  const Json as_given = read_messages(fields);
  Json conversation = read_template_fields(fields, backend);
  conversation["messages"] = as_given;
  const bool were_text = read_call_arguments(&conversation["messages"]);
  try {
    return backend.chat_request(one_line_of(conversation));
  } catch (const std::exception& e) {
    pass_on_shortage(e);
    const std::string first = e.what();
    if (!were_text) refuse_conversation(first);
    conversation["messages"] = as_given;
    try {
      return backend.chat_request(one_line_of(conversation));
    } catch (const std::exception& again) {
      pass_on_shortage(again);
      refuse_conversation(first);
    }
  }
}

}  // namespace attnres
