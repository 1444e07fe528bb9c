// A conversation as tokens that a model continues.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "attnres/chat/conversation.h"
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

std::string text_of(const std::vector<ChatPart>& parts);

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
// renders it: trim_blocks and lstrip_blocks are set; a conversation's parts, its arguments,
// `bos_token`, `eos_token` and the model's other special tokens are given; within the limits of
// chat/jinja/meter.h. Beyond that:
// - What a conversation says is written, but for the roles of OpenAI's API, of which templates make
//   control tokens.
// - The role developer is system where the template nowhere speaks of a developer.
// - A content that is a list of text parts is given as one text, where that makes another prompt
//   than a list of one part does: then the template does not take lists.
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

  // The names that its tags read, of variables and of what it sets itself.
  const std::set<std::string, std::less<>>& names() const { return names_; }

  // Throws Error on no messages, on what a conversation may not be (chat/conversation.h), on what
  // the template refuses (in its words), where it cannot be read, where it takes more than its
  // limits, and where a last message that is to go on is not in the prompt. A plain transcript
  // refuses all but texts of system, user and assistant.
  std::vector<ChatPart> rendered(const Conversation& conversation) const;
  // Up to where the assistant goes on.
  std::vector<ChatPart> parts(const std::vector<ChatMessage>& messages) const;
  // A conversation that has ended, the last answer with what ends it.
  std::vector<ChatPart> ended(const std::vector<ChatMessage>& messages) const;
  // How the model writes an answer.
  const ReplyFormat& reply_format() const { return reply_format_; }
  // What the template writes after an answer; nothing where that cannot be told.
  ChatEnds ends(const Tokenizer& tokenizer) const;

 private:
  struct Program;

  std::vector<ChatPart> render(const std::vector<ChatMessage>& messages, bool to_go_on) const;
  std::vector<ChatPart> render(const Conversation& conversation) const;
  std::vector<ChatPart> render(const Json& messages, const Conversation& conversation) const;

  std::shared_ptr<const Program> program_;
  ChatTokens tokens_;
  std::string name_;
  std::string error_;
  ReplyFormat reply_format_;
  std::set<std::string, std::less<>> names_;
};

// The tokens of a rendered conversation. A plain transcript begins as any text does
// (Tokenizer::frame); what a conversation begins with else its template writes.
std::vector<int32_t> chat_prompt_ids(const std::vector<ChatPart>& prompt,
                                     const ChatTemplate& chat_template, const Tokenizer& tokenizer);
// Up to where the assistant goes on. Throws Error as ChatTemplate::rendered.
std::vector<int32_t> chat_prompt_ids(const std::vector<ChatMessage>& messages,
                                     const ChatTemplate& chat_template, const Tokenizer& tokenizer);

// Control tokens outside of what was written are tokens of their own where the tokenizer has them;
// all between two of them is tokenized as one text.
std::vector<int32_t> encode_chat(const Tokenizer& tokenizer, const std::vector<ChatPart>& parts);

}  // namespace attnres
