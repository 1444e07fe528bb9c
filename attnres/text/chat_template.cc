#include "attnres/text/chat_template.h"

#include "attnres/support/error.h"

namespace attnres {

std::string plain_transcript(const std::vector<ChatMessage>& messages) {
  std::string text;
  for (const ChatMessage& message : messages) {
    if (message.role == "system") {
      text += message.content + "\n\n";
    } else if (message.role == "user") {
      text += "User: " + message.content + "\n";
    } else {
      require(message.role == "assistant",
              "chat: expected messages of system, user and assistant, got one of {}", message.role);
      text += "Assistant: " + message.content + "\n";
    }
  }
  return text + "Assistant:";
}

std::vector<std::string> plain_transcript_stops() {
  return {"\nUser:", "\nAssistant:"};
}

}  // namespace attnres
