#include "attnres/chat/chat_template.h"

#include <algorithm>
#include <exception>
#include <new>
#include <optional>
#include <string_view>
#include <utility>

#include "attnres/chat/control_tokens.h"
#include "attnres/chat/jinja/builtins.h"
#include "attnres/chat/jinja/interpreter.h"
#include "attnres/chat/jinja/json_value.h"
#include "attnres/chat/jinja/lexer.h"
#include "attnres/chat/jinja/parser.h"
#include "attnres/support/error.h"

namespace attnres {
namespace {

Conversation conversation_of(const std::vector<ChatMessage>& messages, bool to_go_on) {
  Conversation conversation{.add_generation_prompt = to_go_on};
  for (const auto& [role, content] : messages) {
    conversation.messages.push_back({{"role", role}, {"content", content}});
  }
  return conversation;
}

// A plain transcript's text of a message.
std::string content_of(const Json& message) {
  const Json content = message.value("content", Json());
  if (content.is_null()) return "";
  if (content.is_string()) return content;
  const std::optional<std::string> text = joined_parts(content);
  require(text.has_value(), "messages: content: expected a text, got {}", shown(content));
  return *text;
}

std::vector<ChatPart> transcript(const Conversation& conversation) {
  const auto require_none = [](const Json& value, const char* name) {
    require(value.empty(),
            "this model has no chat template that would tell it of {}: leave them out, or give the "
            "model a template",
            name);
  };
  require_none(conversation.tools, "tools");
  require_none(conversation.documents, "documents");
  std::vector<ChatPart> parts;
  for (const Json& message : conversation.messages) {
    const std::string role = message["role"];
    require_none(message.value("tool_calls", Json()), "tool calls");
    const std::string content = content_of(message);
    if (role == "system" || role == "developer") {
      parts.insert(parts.end(), {{content, true}, {"\n\n"}});
      continue;
    }
    require(role == "user" || role == "assistant",
            "this model has no chat template: expected messages of system, user and assistant, got "
            "one of {}",
            shown(message["role"]));
    parts.insert(parts.end(),
                 {{role == "user" ? "User: " : "Assistant: "}, {content, true}, {"\n"}});
  }
  if (conversation.continue_final_message) {
    parts.pop_back();
  } else if (conversation.add_generation_prompt) {
    parts.push_back({"Assistant:"});
  }
  return parts;
}

// Templates make control tokens of roles: "<|im_" ~ role ~ "|>".
bool is_known_role(const Json& role) {
  constexpr std::string_view kRoles[] = {"system",    "developer", "user",
                                         "assistant", "tool",      "function"};
  return std::find(std::begin(kRoles), std::end(kRoles), role.get_ref<const std::string&>()) !=
         std::end(kRoles);
}

jinja::Value value_of_messages(const Json& messages) {
  using jinja::Value;
  jinja::Values list;
  for (const Json& message : messages) {
    jinja::Entries entries;
    for (const auto& [key, value] : message.items()) {
      const bool written = key != "role" || !is_known_role(value);
      entries.emplace_back(Value::text(jinja::Text(key, true)), jinja::value_of(value, written));
    }
    list.push_back(Value::dict(std::move(entries)));
  }
  return Value::list(std::move(list));
}

// Stands where a message is to go on, and ends in a blank, which a template that trims takes away.
constexpr std::string_view kGoesOn = "THE_MESSAGE_GOES_ON_HERE ";

// The text that a content is or ends with; null where it has none.
Json* last_text(Json& content) {
  if (content.is_string()) return &content;
  if (!content.is_array()) return nullptr;
  for (size_t i = content.size(); i > 0; --i) {
    Json& part = content[i - 1];
    if (part.is_object() && part.value("text", Json()).is_string()) return &part["text"];
  }
  return nullptr;
}

// Up to the end of what the last message says.
jinja::Text cut_where_it_goes_on(const jinja::Text& text, const Json& messages) {
  Json content = messages.back()["content"];
  std::string said = *last_text(content);
  said.resize(said.size() - kGoesOn.size());
  const jinja::Text core = jinja::stripped(jinja::Text(said), jinja::Value::none(), true, true);
  const std::string_view mark = kGoesOn.substr(0, kGoesOn.size() - 1);
  const size_t end = text.bytes().rfind(mark);
  require(end != std::string::npos && text.bytes().find(core.bytes()) != std::string::npos,
          "continue_final_message: the last message is not in the prompt as it is");
  const jinja::Text before = text.slice(0, end);
  if (text.bytes().compare(end, kGoesOn.size(), kGoesOn) == 0) return before;
  return jinja::stripped(before, jinja::Value::none(), false, true);
}

// Messages whose contents that are lists of text parts are made one text each; as a list of one
// part where `as_list`.
Json with_joined_parts(Json messages, bool as_list) {
  for (Json& message : messages) {
    const std::optional<std::string> text = joined_parts(message.value("content", Json()));
    if (!text) continue;
    message["content"] = *text;
    if (as_list) message["content"] = Json::array({{{"type", "text"}, {"text", *text}}});
  }
  return messages;
}

bool has_parts(const Json& messages) {
  return std::any_of(messages.begin(), messages.end(), [](const Json& message) {
    return joined_parts(message.value("content", Json())).has_value();
  });
}

std::set<std::string, std::less<>> names_in(const std::string& source) {
  std::set<std::string, std::less<>> names;
  const std::vector<jinja::Token> tokens = jinja::tokens_of(source);
  const auto is_symbol = [&](size_t at, std::string_view symbol) {
    return tokens[at].kind == jinja::Token::Kind::symbol && tokens[at].value == symbol;
  };
  for (size_t i = 1; i + 1 < tokens.size(); ++i) {
    const bool read = !is_symbol(i - 1, ".") && !is_symbol(i + 1, "=");
    if (tokens[i].kind == jinja::Token::Kind::name && read) names.insert(tokens[i].value);
  }
  return names;
}

// What follows one another and is alike written or not is one part.
std::vector<ChatPart> parts_of(const jinja::Text& text) {
  std::vector<ChatPart> parts;
  for (size_t begin = 0, end = 0; begin < text.size(); begin = end) {
    while (end < text.size() && text.written(end) == text.written(begin)) ++end;
    parts.push_back({text.bytes().substr(begin, end - begin), text.written(begin)});
  }
  return parts;
}

}  // namespace

struct ChatTemplate::Program {
  jinja::Statements statements;
  bool knows_developers;
};

ChatTemplate::ChatTemplate(const std::string& jinja, ChatTokens tokens, std::string name)
    : tokens_(std::move(tokens)), name_(std::move(name)), reply_format_(reply_format_of(jinja)) {
  if (jinja.empty()) return;
  try {
    program_ = std::make_shared<const Program>(
        Program{jinja::parse(jinja), jinja.find("developer") != jinja.npos});
    names_ = names_in(jinja);
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& e) {
    error_ = fmt::format("{}, {}", name_, e.what());
  }
}

std::vector<ChatPart> ChatTemplate::render(const std::vector<ChatMessage>& messages,
                                           bool to_go_on) const {
  return render(conversation_of(messages, to_go_on));
}

std::vector<ChatPart> ChatTemplate::render(const Conversation& conversation) const {
  Json messages = template_messages(conversation.messages);
  for (Json& message : messages) {
    if (message["role"] == "developer" && !program_->knows_developers) message["role"] = "system";
  }
  if (conversation.continue_final_message) {
    Json* text =
        messages.back().contains("content") ? last_text(messages.back()["content"]) : nullptr;
    require(text != nullptr, "continue_final_message: the last message has no text to go on with");
    text->get_ref<std::string&>() += kGoesOn;
  }
  if (!has_parts(messages)) return render(messages, conversation);
  std::vector<ChatPart> joined =
      render(with_joined_parts(messages, /*as_list=*/false), conversation);
  try {
    if (render(with_joined_parts(messages, /*as_list=*/true), conversation) != joined) {
      return joined;
    }
  } catch (const Error&) {
    return joined;
  }
  return render(messages, conversation);
}

std::vector<ChatPart> ChatTemplate::render(const Json& messages,
                                           const Conversation& conversation) const {
  using jinja::Value;
  jinja::Meter meter({});
  jinja::Interpreter interpreter(meter);
  const bool prompts = conversation.add_generation_prompt && !conversation.continue_final_message;
  jinja::Interpreter::Names names = {{"messages", value_of_messages(messages)},
                                     {"add_generation_prompt", Value::boolean(prompts)},
                                     {"tools", jinja::value_of(conversation.tools, true)},
                                     {"documents", jinja::value_of(conversation.documents, true)}};
  for (const auto& [name, value] : conversation.arguments.items()) {
    names.emplace(name, jinja::value_of(value, true));
  }
  names.emplace("bos_token", Value::text(tokens_.begin));
  names.emplace("eos_token", Value::text(tokens_.end));
  for (const auto& [name, text] : tokens_.others) names.emplace(name, Value::text(text));
  const jinja::Text text = interpreter.render(program_->statements, std::move(names));
  return parts_of(conversation.continue_final_message ? cut_where_it_goes_on(text, messages)
                                                      : text);
}

void ChatTemplate::require_read() const {
  require(error_.empty(),
          "this model's chat template cannot be read ({}); give a prompt as the model expects it",
          error_);
}

std::vector<ChatPart> ChatTemplate::rendered(const Conversation& conversation) const {
  check(conversation);
  require(!conversation.messages.empty(), "messages: there are none");
  require_read();
  if (plain()) return transcript(conversation);
  try {
    return render(conversation);
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& e) {
    fail("this model's chat template does not take this conversation: {}, {}", name_, e.what());
  }
}

std::vector<ChatPart> ChatTemplate::parts(const std::vector<ChatMessage>& messages) const {
  return rendered(conversation_of(messages, /*to_go_on=*/true));
}

std::vector<ChatPart> ChatTemplate::ended(const std::vector<ChatMessage>& messages) const {
  return rendered(conversation_of(messages, /*to_go_on=*/false));
}

ChatEnds ChatTemplate::ends(const Tokenizer& tokenizer) const {
  if (plain()) return {.texts = {"\nUser:", "\nAssistant:"}};
  if (program_ == nullptr) return {};
  constexpr std::string_view kAnswer = "the answer";
  std::string text;
  try {
    for (const ChatPart& part :
         render({{"user", "a question"}, {"assistant", std::string(kAnswer)}}, false)) {
      text += part.text;
    }
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception&) {
    return {};  // the model's own end of a text remains
  }
  const size_t answer = text.rfind(kAnswer);
  if (answer == text.npos) return {};
  std::string_view after = std::string_view(text).substr(answer + kAnswer.size());
  for (const auto& [id, begin, bytes] : control_tokens_in(tokenizer, after)) {
    if (!has_mark(reply_format_, after.substr(begin, bytes))) return {.tokens = {id}};
  }
  // Without control tokens: the first word, or what is written <...>, that marks nothing.
  after.remove_prefix(std::min(after.find_first_not_of(" \n"), after.size()));
  while (!after.empty()) {
    std::string_view word = after.substr(0, after.find_first_of(" \n"));
    word = word.substr(0, word.find('>') == word.npos ? word.npos : word.find('>') + 1);
    if (!has_mark(reply_format_, word)) return {.texts = {std::string(word)}};
    after.remove_prefix(word.size());
    after.remove_prefix(std::min(after.find('<'), after.size()));
  }
  return {};
}

std::string text_of(const std::vector<ChatPart>& parts) {
  std::string text;
  for (const ChatPart& part : parts) text += part.text;
  return text;
}

std::vector<int32_t> chat_prompt_ids(const std::vector<ChatPart>& prompt,
                                     const ChatTemplate& chat_template,
                                     const Tokenizer& tokenizer) {
  std::vector<int32_t> ids;
  if (chat_template.plain()) ids = tokenizer.frame().before;
  const std::vector<int32_t> more = encode_chat(tokenizer, prompt);
  ids.insert(ids.end(), more.begin(), more.end());
  return ids;
}

std::vector<int32_t> chat_prompt_ids(const std::vector<ChatMessage>& messages,
                                     const ChatTemplate& chat_template,
                                     const Tokenizer& tokenizer) {
  return chat_prompt_ids(chat_template.parts(messages), chat_template, tokenizer);
}

std::vector<int32_t> encode_chat(const Tokenizer& tokenizer, const std::vector<ChatPart>& parts) {
  std::vector<int32_t> ids;
  std::string text;
  const auto tokenize_text = [&] {
    const std::vector<int32_t> more = tokenizer.encode(std::exchange(text, ""));
    ids.insert(ids.end(), more.begin(), more.end());
  };
  for (const ChatPart& part : parts) {
    if (part.written) {
      text += part.text;
      continue;
    }
    size_t done = 0;
    for (const auto& [id, begin, bytes] : control_tokens_in(tokenizer, part.text)) {
      text += part.text.substr(done, begin - done);
      tokenize_text();
      ids.push_back(id);
      done = begin + bytes;
    }
    text += part.text.substr(done);
  }
  tokenize_text();
  return ids;
}

}  // namespace attnres
