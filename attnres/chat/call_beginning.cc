#include "attnres/chat/call_beginning.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "attnres/support/error.h"

namespace attnres {
namespace {

// What has to come right before the name, which may be anything.
std::string before_name(const CallForm& form) {
  if (!form.name_attribute.empty()) return " " + form.name_attribute + "=\"";
  return form.head_end.empty() ? "\"name\"" : "";
}

// What shows that it is the whole name; some templates write a head's end only before arguments.
size_t after_name(const CallForm& form, std::string_view text, size_t end) {
  if (!form.name_attribute.empty()) {
    const size_t found = text.find(form.head_end, end);
    return found == text.npos ? end : found + form.head_end.size();
  }
  const std::string mark = form.head_is_id ? ":" : form.head_end.empty() ? "\"" : form.head_end;
  return text.substr(end).starts_with(mark) ? end + mark.size() : end;
}

// A question with this tool alone: however long a conversation is, and however many tools it has,
// finding how each is called takes no longer than they are.
Conversation question(const Conversation& conversation, const std::string& tool) {
  Conversation question{.messages = {{{"role", "user"}, {"content", "?"}}},
                        .tools = Json::array(),
                        .arguments = conversation.arguments,
                        .add_generation_prompt = false};
  for (const Json& given : conversation.tools) {
    if (name_of_tool(given) == tool) question.tools.push_back(given);
  }
  return question;
}

}  // namespace

std::string call_beginning(const ChatTemplate& chat_template, const Conversation& conversation,
                           const std::string& tool) {
  const auto& form = chat_template.reply_format().calls;
  require(form.has_value(),
          "tool_choice: this model's chat template writes no calls in a form that is known");
  Conversation asked = question(conversation, tool);
  const std::string before = text_of(chat_template.rendered(asked));
  asked.messages.push_back({{"role", "assistant"},
                            {"content", ""},
                            {"tool_calls",
                             {{{"id", form->head_is_id ? "functions." + tool + ":0" : "call_0"},
                               {"type", "function"},
                               {"function", {{"name", tool}, {"arguments", Json::object()}}}}}}});
  const std::string after = text_of(chat_template.rendered(asked));

  const auto same = std::mismatch(before.begin(), before.end(), after.begin(), after.end()).first;
  size_t end = static_cast<size_t>(same - before.begin());
  size_t begin = after.npos;
  for (const std::string& mark : {form->section, form->begin, before_name(*form), tool}) {
    const size_t found = after.find(mark, end);
    require(found != after.npos, "tool_choice: this model's chat template writes no call of {}",
            tool);
    if (begin == after.npos && !mark.empty()) begin = found;
    end = found + mark.size();
  }
  return after.substr(begin, after_name(*form, after, end) - begin);
}

}  // namespace attnres
