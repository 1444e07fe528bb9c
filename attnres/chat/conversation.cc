#include "attnres/chat/conversation.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "attnres/support/error.h"

namespace attnres {
namespace {

constexpr const char* kConversation = "the conversation";
constexpr size_t kMostCallable = 128;  // as in OpenAI's API

bool flag(const Json& value, const std::string& name) {
  require(value.is_boolean(), "{}: expected true or false, got {}", name, shown(value));
  return value.get<bool>();
}

void check_list(const Json& list, const std::string& name) {
  const bool sound = list.is_array() && std::all_of(list.begin(), list.end(), [](const Json& item) {
                       return item.is_object();
                     });
  require(sound, "{}: expected a list of objects, got {}", name, shown(list));
}

void choose_tools(const Json& choice, Conversation* conversation) {
  if (choice.is_null() || choice == "auto") return;
  if (choice == "none") {
    conversation->tools = nullptr;
    return;
  }
  const Json wanted = choice.is_object() ? name_of_tool(choice) : Json();
  require(choice == "required" || wanted.is_string(),
          "tool_choice: expected none, auto, required or a function, as {{\"type\": \"function\", "
          "\"function\": {{\"name\": ...}}}}, got {}",
          shown(choice));
  for (const Json& tool : conversation->tools) {
    const Json name = name_of_tool(tool);
    if (name.is_string() && (wanted.is_null() || name == wanted)) {
      conversation->must_call.push_back(name);
    }
  }
  require(
      !conversation->must_call.empty(), "tool_choice: {}",
      wanted.is_null() ? "there are no tools" : fmt::format("there is no tool {}", shown(wanted)));
  require(conversation->must_call.size() <= kMostCallable,
          "tool_choice: required takes {} tools at most, got {}; name one, or give fewer",
          kMostCallable, conversation->must_call.size());
}

}  // namespace

Json name_of_tool(const Json& tool) {
  const Json function = tool.value("function", Json());
  return function.is_object() ? function.value("name", Json()) : Json();
}

Conversation parse_conversation(std::string_view json) {
  Json given = parse_json(json, kConversation);
  require(given.is_object(), "{}: expected a JSON object, got {}", kConversation, shown(given));
  Conversation conversation;
  Json choice;
  bool prompts = false;
  for (const auto& [name, value] : given.items()) {
    if (value.is_null()) continue;
    if (name == "messages") {
      conversation.messages = std::move(value);
    } else if (name == "tools" || name == "documents") {
      (name == "tools" ? conversation.tools : conversation.documents) = std::move(value);
    } else if (name == "tool_choice") {
      choice = std::move(value);
    } else if (name == "chat_template_kwargs") {
      conversation.arguments = std::move(value);
    } else if (name == "add_generation_prompt") {
      prompts = conversation.add_generation_prompt = flag(value, name);
    } else if (name == "continue_final_message") {
      conversation.continue_final_message = flag(value, name);
    } else {
      fail(
          "{}: there is no {}; it has messages, tools, tool_choice, documents, "
          "chat_template_kwargs, add_generation_prompt and continue_final_message",
          kConversation, shown(Json(name)));
    }
  }
  check(conversation);
  choose_tools(choice, &conversation);
  require(!prompts || !conversation.continue_final_message,
          "continue_final_message: the last message is continued, or another is begun with "
          "add_generation_prompt; leave one of them out");
  return conversation;
}

void check(const Conversation& conversation) {
  check_list(conversation.messages, "messages");
  for (const Json& message : conversation.messages) {
    require(message.value("role", Json()).is_string(),
            "messages: expected objects with a role, got {}", shown(message));
  }
  if (!conversation.tools.is_null()) check_list(conversation.tools, "tools");
  if (!conversation.documents.is_null()) check_list(conversation.documents, "documents");
  check_arguments(conversation.arguments, "chat_template_kwargs");
}

void check_arguments(const Json& arguments, const std::string& field) {
  require(arguments.is_object(), "{}: expected an object, got {}", field, shown(arguments));
  for (const char* name :
       {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message"}) {
    require(!arguments.contains(name), "{}: {} is a part of the conversation itself", field, name);
  }
}

Json template_messages(const Json& messages) {
  Json all = Json::array();
  for (const Json& given : messages) {
    Json message = Json::object();
    auto& members = message.get_ref<Json::object_t&>();  // to add to without a search for each key
    const auto said = [&](const char* name) -> const Json* {
      const auto found = given.find(name);
      return found == given.end() || found->is_null() ? nullptr : &*found;
    };
    const Json *thinking = said("thinking"), *content = said("reasoning_content");
    const Json* thought = content != nullptr    ? content
                          : thinking != nullptr ? thinking
                                                : said("reasoning");
    if (thought != nullptr) {
      members.emplace_back("thinking", thinking != nullptr ? *thinking : *thought);
    }
    for (const auto& [key, value] : given.items()) {
      if (!value.is_null() && key != "thinking") members.emplace_back(key, value);
    }
    if (thought != nullptr && content == nullptr)
      members.emplace_back("reasoning_content", *thought);
    all.push_back(std::move(message));
  }
  return all;
}

std::optional<std::string> joined_parts(const Json& content) {
  if (!content.is_array()) return std::nullopt;
  std::string text;
  for (const Json& part : content) {
    const bool is_text = part.is_object() && part.value("type", Json()) == "text" &&
                         part.value("text", Json()).is_string();
    if (!is_text) return std::nullopt;
    text += part["text"].get_ref<const std::string&>();
  }
  return text;
}

}  // namespace attnres
