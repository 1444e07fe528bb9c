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

}  // namespace attnres
