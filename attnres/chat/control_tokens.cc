#include "attnres/chat/control_tokens.h"

#include <optional>

namespace attnres {
namespace {

constexpr size_t kLongestControlToken = 64;

std::optional<ControlToken> control_token_at(const Tokenizer& tokenizer, std::string_view text,
                                             size_t begin) {
  const char closing = text[begin] == '<' ? '>' : ']';
  const std::string_view names = text.substr(begin, kLongestControlToken);
  for (size_t end = names.find(closing); end != names.npos; end = names.find(closing, end + 1)) {
    const auto id = tokenizer.control_token(names.substr(0, end + 1));
    if (id) return {{*id, begin, end + 1}};
  }
  return std::nullopt;
}

}  // namespace

std::vector<ControlToken> control_tokens_in(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<ControlToken> tokens;
  for (size_t at = text.find_first_of("<["); at != text.npos; at = text.find_first_of("<[", at)) {
    if (const auto token = control_token_at(tokenizer, text, at)) {
      tokens.push_back(*token);
      at += token->bytes;
    } else {
      ++at;
    }
  }
  return tokens;
}

void MarkedText::add(std::string_view more, bool is_control) {
  text += more;
  control.append(more.size(), is_control ? 1 : 0);
}

void MarkedText::erase_first(size_t bytes) {
  text.erase(0, bytes);
  control.erase(0, bytes);
}

size_t MarkedText::find(const MarkedText& mark, size_t from) const {
  size_t found = text.find(mark.text, from);
  while (found != text.npos && control.compare(found, mark.control.size(), mark.control) != 0) {
    found = text.find(mark.text, found + 1);
  }
  return found;
}

MarkedText marked_text(const Tokenizer& tokenizer, std::string_view text) {
  MarkedText marked;
  marked.add(text, /*is_control=*/false);
  for (const auto& [id, begin, bytes] : control_tokens_in(tokenizer, text)) {
    marked.control.replace(begin, bytes, bytes, 1);
  }
  return marked;
}

}  // namespace attnres
