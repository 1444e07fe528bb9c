// A conversation with all that a chat template is given of it.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "attnres/support/json.h"

namespace attnres {

struct Conversation {
  // OpenAI's: objects with a role and what the template reads of a message beside it.
  Json messages = Json::array();
  Json tools = nullptr, documents = nullptr;  // lists of objects
  Json arguments = Json::object();            // further variables: vLLM's chat_template_kwargs
  bool add_generation_prompt = true;          // up to where the assistant goes on
  bool continue_final_message = false;        // in its place, up to the last message's content
  std::vector<std::string> must_call = {};    // the answer calls one of these tools; empty: it may
};

// Of {"messages", "tools", "tool_choice", "documents", "chat_template_kwargs",
// "add_generation_prompt", "continue_final_message"}, of which only the messages have to be there.
// tool_choice is "auto", "none" (there are no tools then), "required" or {"type": "function",
// "function": {"name"}}. Throws Error on anything else.
Conversation parse_conversation(std::string_view json);

// Of {"function": {"name"}}; null of another.
Json name_of_tool(const Json& tool);

// Throws Error where its parts are not of these kinds.
void check(const Conversation& conversation);
// Throws Error naming the field on arguments that are no object, and on a name that is another part
// of a conversation.
void check_arguments(const Json& arguments, const std::string& field);

// Messages as Hugging Face's transformers hands them to a template: without what is null; what
// somebody thought as `reasoning_content` and `thinking`, whichever of these or `reasoning` has it.
Json template_messages(const Json& messages);

// The text of a content that is a list of parts of type text, one after another; nothing of another
// list, and of what is none.
std::optional<std::string> joined_parts(const Json& content);

}  // namespace attnres
