#include "attnres/chat/control_tokens.h"

namespace attnres {
namespace {

constexpr size_t kLongestControlToken = 64;

}  // namespace

std::optional<ControlToken> leading_control_token(const Tokenizer& tokenizer,
                                                  std::string_view text) {
  if (text.empty() || (text[0] != '<' && text[0] != '[')) return std::nullopt;
  const char closing = text[0] == '<' ? '>' : ']';
  text = text.substr(0, kLongestControlToken);
  for (size_t end = text.find(closing); end != text.npos; end = text.find(closing, end + 1)) {
    if (const auto id = tokenizer.control_token(text.substr(0, end + 1))) return {{*id, end + 1}};
  }
  return std::nullopt;
}

}  // namespace attnres
