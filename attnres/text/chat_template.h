// A conversation as tokens that a model continues.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "attnres/chat/reply_format.h"
#include "attnres/text/tokenizer.h"

namespace attnres {

struct ChatMessage {
  std::string role;  // "system", "user", "assistant"
  std::string content;
};

// What a conversation is rendered to. In a text that somebody wrote, control tokens are no tokens.
struct ChatPart {
  std::string text;
  bool written = false;

  bool operator==(const ChatPart&) const = default;
};

// What ends an answer: control tokens that the tokenizer has, and texts.
struct ChatEnds {
  std::vector<int64_t> tokens = {};
  std::vector<std::string> texts = {};
};

// A model's special tokens, as texts.
struct ChatTokens {
  std::string begin = "", end = "";  // empty where the model has none
  // Those that a template may ask for by their names in tokenizer_config.json, "pad_token".
  std::map<std::string, std::string> others = {};
};

// The Jinja template that a model was taught conversations with, as Hugging Face's transformers
// renders it (trim_blocks and lstrip_blocks are set; `messages`, `add_generation_prompt`,
// `bos_token`, `eos_token` and the model's other special tokens are given, `tools` and `documents`
// are none), within the limits of text/jinja/meter.h.
// Without a template, a plain transcript: the system's text, an empty line, then "User: ..." and
// "Assistant: ..." in lines. Immutable, so it serves any number of threads.
class ChatTemplate {
 public:
  // Plain of an empty text. What cannot be read is said when it is used.
  // `name` is what errors call it.
  explicit ChatTemplate(const std::string& jinja = "", ChatTokens tokens = {},
                        std::string name = "the template");

  bool plain() const { return program_ == nullptr && error_.empty(); }
  const std::string& error() const { return error_; }  // empty where it can be used
  // Throws Error where it cannot.
  void require_read() const;

  // Up to where the assistant goes on. Throws Error on no messages, on a role that is none of the
  // three, on what the template refuses (in its words), where it cannot be read, and where it takes
  // more than its limits.
  std::vector<ChatPart> parts(const std::vector<ChatMessage>& messages) const;
  // A conversation that has ended, the last answer with what ends it. Throws as parts().
  std::vector<ChatPart> ended(const std::vector<ChatMessage>& messages) const;
  // How the model writes an answer.
  const ReplyFormat& reply_format() const { return reply_format_; }
  // What the template writes after an answer; nothing where that cannot be told.
  ChatEnds ends(const Tokenizer& tokenizer) const;

 private:
  struct Program;

  std::vector<ChatPart> render(const std::vector<ChatMessage>& messages, bool to_go_on) const;
  std::vector<ChatPart> checked(const std::vector<ChatMessage>& messages, bool to_go_on) const;

  std::shared_ptr<const Program> program_;
  ChatTokens tokens_;
  std::string name_;
  std::string error_;
  ReplyFormat reply_format_;
};

// The tokens of a conversation up to where the assistant goes on. A plain transcript begins as any
// text does (Tokenizer::frame); what a conversation begins with else its template writes. Throws
// Error as ChatTemplate::parts.
std::vector<int32_t> chat_prompt_ids(const std::vector<ChatMessage>& messages,
                                     const ChatTemplate& chat_template, const Tokenizer& tokenizer);

// Control tokens outside of what was written are tokens of their own where the tokenizer has them;
// all between two of them is tokenized as one text.
std::vector<int32_t> encode_chat(const Tokenizer& tokenizer, const std::vector<ChatPart>& parts);

}  // namespace attnres
