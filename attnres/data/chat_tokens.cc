#include "attnres/data/chat_tokens.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "attnres/data/training_tokens.h"
#include "attnres/support/error.h"

namespace attnres {
namespace {

// Bytes [begin, end) of what is rendered.
std::vector<ChatPart> slice(const std::vector<ChatPart>& parts, size_t begin, size_t end) {
  std::vector<ChatPart> slice;
  size_t at = 0;
  for (const ChatPart& part : parts) {
    const size_t from = std::max(begin, at), to = std::min(end, at + part.text.size());
    if (from < to) slice.push_back({part.text.substr(from - at, to - from), part.written});
    at += part.text.size();
  }
  return slice;
}

void require_begins_with(const std::string& later, const std::string& earlier) {
  require(later.starts_with(earlier),
          "the chat template changes earlier messages when more follow, so it cannot be told what "
          "an answer follows; give conversations with one answer each");
}

}  // namespace

std::vector<ChatMessage> read_conversation(const Json& messages) {
  require(messages.is_array(), "expected a list of messages, found {}", shown(messages));
  std::vector<ChatMessage> conversation;
  for (const Json& message : messages) {
    const bool sound = message.is_object() && message.value("role", Json()).is_string() &&
                       message.value("content", Json()).is_string();
    require(sound, "expected a message with the texts role and content, found {}", shown(message));
    conversation.push_back({message["role"], message["content"]});
  }
  return conversation;
}

std::vector<uint32_t> chat_tokens(const std::vector<ChatMessage>& messages,
                                  const ChatTemplate& chat_template, const Tokenizer& tokenizer) {
  const std::vector<ChatPart> all = chat_template.ended(messages);
  const std::string text = text_of(all);
  std::vector<uint32_t> tokens;
  if (chat_template.plain()) {
    for (const int32_t id : tokenizer.frame().before) tokens.push_back(id | kNoTarget);
  }
  size_t done = 0;
  const auto add = [&](size_t end, uint32_t mark) {
    for (const int32_t id : encode_chat(tokenizer, slice(all, done, end))) {
      tokens.push_back(static_cast<uint32_t>(id) | mark);
    }
    done = end;
  };
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].role != "assistant") continue;
    const std::vector<ChatMessage> before(messages.begin(), messages.begin() + i);
    require(!before.empty(), "the conversation begins with an answer: nothing asks for it");
    const std::vector<ChatMessage> with_answer(messages.begin(), messages.begin() + i + 1);
    const std::string asked = text_of(chat_template.parts(before));
    const std::string answered = text_of(chat_template.ended(with_answer));
    require_begins_with(answered, asked);
    require_begins_with(text, answered);
    add(asked.size(), kNoTarget);
    add(answered.size(), 0);
  }
  require(done > 0, "no message is the assistant's, so there is nothing to learn");
  add(text.size(), kNoTarget);
  const bool answered = messages.back().role == "assistant";
  const uint32_t end =
      static_cast<uint32_t>(tokenizer.end_of_document()) | (answered ? 0 : kNoTarget);
  if (tokens.back() != end) tokens.push_back(end);  // which the template may have written
  return tokens;
}

}  // namespace attnres
