#include "attnres/text/chat_template.h"

#include <algorithm>
#include <exception>
#include <new>
#include <optional>
#include <string_view>
#include <utility>

#include "attnres/chat/control_tokens.h"
#include "attnres/support/error.h"
#include "attnres/text/jinja/interpreter.h"
#include "attnres/text/jinja/parser.h"

namespace attnres {
namespace {

std::vector<ChatPart> transcript(const std::vector<ChatMessage>& messages, bool to_go_on) {
  std::vector<ChatPart> parts;
  for (const auto& [role, content] : messages) {
    if (role == "system") {
      parts.insert(parts.end(), {{content, true}, {"\n\n"}});
    } else {
      parts.insert(parts.end(),
                   {{role == "user" ? "User: " : "Assistant: "}, {content, true}, {"\n"}});
    }
  }
  if (to_go_on) parts.push_back({"Assistant:"});
  return parts;
}

jinja::Value value_of(const std::vector<ChatMessage>& messages) {
  using jinja::Value;
  jinja::Values list;
  for (const auto& [role, content] : messages) {
    list.push_back(
        Value::dict({{Value::text("role"), Value::text(role)},
                     {Value::text("content"), Value::text(jinja::Text(content, true))}}));
  }
  return Value::list(std::move(list));
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
};

ChatTemplate::ChatTemplate(const std::string& jinja, ChatTokens tokens, std::string name)
    : tokens_(std::move(tokens)), name_(std::move(name)), reply_format_(reply_format_of(jinja)) {
  if (jinja.empty()) return;
  try {
    program_ = std::make_shared<const Program>(Program{jinja::parse(jinja)});
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& e) {
    error_ = fmt::format("{}, {}", name_, e.what());
  }
}

std::vector<ChatPart> ChatTemplate::render(const std::vector<ChatMessage>& messages,
                                           bool to_go_on) const {
  using jinja::Value;
  jinja::Meter meter({});
  jinja::Interpreter interpreter(meter);
  jinja::Interpreter::Names names = {{"messages", value_of(messages)},
                                     {"add_generation_prompt", Value::boolean(to_go_on)},
                                     {"tools", Value::none()},
                                     {"documents", Value::none()},
                                     {"bos_token", Value::text(tokens_.begin)},
                                     {"eos_token", Value::text(tokens_.end)}};
  for (const auto& [name, text] : tokens_.others) names.emplace(name, Value::text(text));
  return parts_of(interpreter.render(program_->statements, std::move(names)));
}

void ChatTemplate::require_read() const {
  require(error_.empty(),
          "this model's chat template cannot be read ({}); give a prompt as the model expects it",
          error_);
}

std::vector<ChatPart> ChatTemplate::checked(const std::vector<ChatMessage>& messages,
                                            bool to_go_on) const {
  require(!messages.empty(), "chat: there are no messages");
  for (const auto& [role, content] : messages) {
    require(role == "system" || role == "user" || role == "assistant",
            "chat: expected messages of system, user and assistant, got one of {}", role);
  }
  require_read();
  if (plain()) return transcript(messages, to_go_on);
  try {
    return render(messages, to_go_on);
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& e) {
    fail("this model's chat template does not take this conversation: {}, {}", name_, e.what());
  }
}

std::vector<ChatPart> ChatTemplate::parts(const std::vector<ChatMessage>& messages) const {
  return checked(messages, /*to_go_on=*/true);
}

std::vector<ChatPart> ChatTemplate::ended(const std::vector<ChatMessage>& messages) const {
  return checked(messages, /*to_go_on=*/false);
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
  ChatEnds ends;
  for (std::string_view rest = after; !rest.empty();) {
    const auto token = leading_control_token(tokenizer, rest);
    const std::string_view name = rest.substr(0, token ? token->bytes : 1);
    if (token && !has_mark(reply_format_, name)) ends.tokens.push_back(token->id);
    rest.remove_prefix(name.size());
  }
  if (!ends.tokens.empty()) return ends;
  // Without control tokens: the first word, or what is written <...>, that marks nothing.
  after.remove_prefix(std::min(after.find_first_not_of(" \n"), after.size()));
  while (!after.empty()) {
    std::string_view word = after.substr(0, after.find_first_of(" \n"));
    word = word.substr(0, word.find('>') == word.npos ? word.npos : word.find('>') + 1);
    if (!has_mark(reply_format_, word)) return {.texts = {std::string(word)}};
    after.remove_prefix(word.size());
    after.remove_prefix(std::min(after.find('<'), after.size()));
  }
  return ends;
}

std::vector<int32_t> chat_prompt_ids(const std::vector<ChatMessage>& messages,
                                     const ChatTemplate& chat_template,
                                     const Tokenizer& tokenizer) {
  std::vector<int32_t> ids;
  if (chat_template.plain()) ids = tokenizer.frame().before;
  const std::vector<int32_t> more = encode_chat(tokenizer, chat_template.parts(messages));
  ids.insert(ids.end(), more.begin(), more.end());
  return ids;
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
    for (std::string_view rest = part.text; !rest.empty();) {
      const auto token = leading_control_token(tokenizer, rest);
      if (token) {
        tokenize_text();
        ids.push_back(token->id);
      } else {
        text += rest[0];
      }
      rest.remove_prefix(token ? token->bytes : 1);
    }
  }
  tokenize_text();
  return ids;
}

}  // namespace attnres
