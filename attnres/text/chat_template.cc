#include "attnres/text/chat_template.h"

#include <fmt/core.h>

#include <array>
#include <utility>

#include "attnres/support/error.h"

namespace attnres {
namespace {

// Each with what only templates of this format have in them; in this order, since Kimi's has
// ChatML's <|im_end|> too.
constexpr std::array<std::pair<ChatFormat, std::string_view>, 4> kMarks = {{
    {ChatFormat::kimi, "<|im_middle|>"},
    {ChatFormat::chatml, "<|im_start|>"},
    {ChatFormat::llama3, "<|start_header_id|>"},
    {ChatFormat::llama2, "[INST]"},
}};

ChatPart control(std::string text) {
  return {std::move(text), true};
}

std::vector<ChatPart> plain(const std::vector<ChatMessage>& messages) {
  std::string text;
  for (const ChatMessage& message : messages) {
    if (message.role == "system") {
      text += message.content + "\n\n";
    } else {
      text += (message.role == "user" ? "User: " : "Assistant: ") + message.content + "\n";
    }
  }
  return {{text + "Assistant:"}};
}

std::vector<ChatPart> chatml(const std::vector<ChatMessage>& messages) {
  std::vector<ChatPart> parts;
  for (const auto& [role, content] : messages) {
    parts.insert(parts.end(), {control("<|im_start|>"),
                               {fmt::format("{}\n{}", role, content)},
                               control("<|im_end|>"),
                               {"\n"}});
  }
  parts.insert(parts.end(), {control("<|im_start|>"), {"assistant\n"}});
  return parts;
}

std::vector<ChatPart> llama2(const std::vector<ChatMessage>& messages) {
  std::vector<ChatPart> parts;
  std::string system;
  bool users_turn = true;
  for (const auto& [role, content] : messages) {
    if (role == "system" && &messages[0].role == &role) {
      system = "<<SYS>>\n" + content + "\n<</SYS>>\n\n";
      continue;
    }
    require(role == (users_turn ? "user" : "assistant"),
            "chat: this model's format takes a system message first, then user and assistant in "
            "turns; got {} where {} is due",
            role, users_turn ? "user" : "assistant");
    if (users_turn) {
      parts.insert(parts.end(), {control("<s>"),
                                 {"[INST] " + std::exchange(system, "") + content + " [/INST]"}});
    } else {
      parts.insert(parts.end(), {{" " + content + " "}, control("</s>")});
    }
    users_turn = !users_turn;
  }
  require(!users_turn, "chat: the last message has to be the user's");
  return parts;
}

std::vector<ChatPart> llama3(const std::vector<ChatMessage>& messages) {
  std::vector<ChatPart> parts = {control("<|begin_of_text|>")};
  const auto header = [&](const std::string& role) {
    parts.insert(parts.end(),
                 {control("<|start_header_id|>"), {role}, control("<|end_header_id|>"), {"\n\n"}});
  };
  for (const auto& [role, content] : messages) {
    header(role);
    parts.insert(parts.end(), {{content}, control("<|eot_id|>")});
  }
  header("assistant");
  return parts;
}

std::vector<ChatPart> kimi(const std::vector<ChatMessage>& messages) {
  std::vector<ChatPart> parts;
  const auto begin = [&](const std::string& role) {
    parts.insert(parts.end(), {control("<|im_" + role + "|>"), {role}, control("<|im_middle|>")});
  };
  for (const auto& [role, content] : messages) {
    begin(role);
    parts.insert(parts.end(), {{content}, control("<|im_end|>")});
  }
  begin("assistant");
  return parts;
}

}  // namespace

std::string_view name(ChatFormat format) {
  switch (format) {
    case ChatFormat::chatml:
      return "chatml";
    case ChatFormat::llama2:
      return "llama2";
    case ChatFormat::llama3:
      return "llama3";
    case ChatFormat::kimi:
      return "kimi";
    case ChatFormat::plain:
      break;
  }
  return "plain";
}

std::optional<ChatFormat> recognize_chat_format(std::string_view jinja) {
  if (jinja.empty()) return ChatFormat::plain;
  for (const auto& [format, mark] : kMarks) {
    if (jinja.find(mark) != std::string_view::npos) return format;
  }
  return std::nullopt;
}

std::vector<ChatPart> chat_parts(ChatFormat format, const std::vector<ChatMessage>& messages) {
  require(!messages.empty(), "chat: there are no messages");
  for (const ChatMessage& message : messages) {
    require(message.role == "system" || message.role == "user" || message.role == "assistant",
            "chat: expected messages of system, user and assistant, got one of {}", message.role);
  }
  switch (format) {
    case ChatFormat::chatml:
      return chatml(messages);
    case ChatFormat::llama2:
      return llama2(messages);
    case ChatFormat::llama3:
      return llama3(messages);
    case ChatFormat::kimi:
      return kimi(messages);
    case ChatFormat::plain:
      break;
  }
  return plain(messages);
}

std::vector<int32_t> encode_chat(const Tokenizer& tokenizer, const std::vector<ChatPart>& parts) {
  std::vector<int32_t> ids;
  for (const ChatPart& part : parts) {
    const auto token = part.control ? tokenizer.control_token(part.text) : std::nullopt;
    if (token) {
      ids.push_back(*token);
      continue;
    }
    const std::vector<int32_t> text = tokenizer.encode(part.text);
    ids.insert(ids.end(), text.begin(), text.end());
  }
  return ids;
}

ChatEnds chat_ends(ChatFormat format, const Tokenizer& tokenizer) {
  std::string end;
  switch (format) {
    case ChatFormat::plain:
      return {.texts = {"\nUser:", "\nAssistant:"}};
    case ChatFormat::chatml:
    case ChatFormat::kimi:
      end = "<|im_end|>";
      break;
    case ChatFormat::llama2:
      end = "</s>";
      break;
    case ChatFormat::llama3:
      end = "<|eot_id|>";
      break;
  }
  if (const auto token = tokenizer.control_token(end)) return {.tokens = {*token}};
  return {.texts = {end}};
}

}  // namespace attnres
