// A conversation as tokens that a model continues.
//
// The formats are those that published models were trained on. They are told from the Jinja
// template that a model comes with (`chat_template`) by the control tokens in it; no template is
// executed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "attnres/text/tokenizer.h"

namespace attnres {

struct ChatMessage {
  std::string role;  // "system", "user", "assistant"
  std::string content;
};

// With <e> for control tokens:
//
//   plain   the system's text, an empty line, then "User: ...", "Assistant: ..." in lines
//   chatml  <|im_start|>ROLE\nTEXT<|im_end|>\n (Qwen, SmolLM)
//   llama2  <s>[INST] <<SYS>>\nSYSTEM\n<</SYS>>\n\nUSER [/INST] ASSISTANT </s> (Mistral too)
//   llama3  <|begin_of_text|><|start_header_id|>ROLE<|end_header_id|>\n\nTEXT<|eot_id|>
//   kimi    <|im_ROLE|>ROLE<|im_middle|>TEXT<|im_end|> (Kimi K2, Kimi Linear)
enum class ChatFormat { plain, chatml, llama2, llama3, kimi };

std::string_view name(ChatFormat format);

// The format of a Jinja template: plain of an empty one, nothing of one that is not known.
std::optional<ChatFormat> recognize_chat_format(std::string_view jinja);

// Control tokens stand by themselves, so that a message cannot contain one.
struct ChatPart {
  std::string text;
  bool control = false;

  bool operator==(const ChatPart&) const = default;
};

// Up to where the assistant goes on. Throws Error on no messages, on a role that is none of the
// three, and of llama2 on an order other than [system] user assistant user ...
std::vector<ChatPart> chat_parts(ChatFormat format, const std::vector<ChatMessage>& messages);

// A control token that the tokenizer does not have is tokenized as its text.
std::vector<int32_t> encode_chat(const Tokenizer& tokenizer, const std::vector<ChatPart>& parts);

// What ends an answer: control tokens that the tokenizer has, and texts.
struct ChatEnds {
  std::vector<int64_t> tokens = {};
  std::vector<std::string> texts = {};
};
ChatEnds chat_ends(ChatFormat format, const Tokenizer& tokenizer);

}  // namespace attnres
