// A conversation as a text that a model continues.
#pragma once

#include <string>
#include <vector>

namespace attnres {

struct ChatMessage {
  std::string role;  // "system", "user", "assistant"
  std::string content;
};

// For models that come without a template: the system's text, then
//
//   User: what the user says
//   Assistant: what the model answered
//
// up to "Assistant:", where it goes on. Throws Error on another role.
std::string plain_transcript(const std::vector<ChatMessage>& messages);

// What ends the answer to it.
std::vector<std::string> plain_transcript_stops();

}  // namespace attnres
