#include "attnres/text/hugging_face/added_tokens.h"

#include <algorithm>

#include "attnres/text/hugging_face/unicode.h"

namespace attnres {
namespace {

bool is_within_word(std::string_view before, std::string_view behind) {
  return (!before.empty() && is_word_character(last_character(before).code)) ||
         (!behind.empty() && is_word_character(first_character(behind).code));
}

size_t spaces_at_end(std::string_view text) {
  size_t bytes = 0;
  while (bytes < text.size()) {
    const Character last = last_character(text.substr(0, text.size() - bytes));
    if (!is_whitespace(last.code)) break;
    bytes += last.bytes;
  }
  return bytes;
}

size_t spaces_at_start(std::string_view text) {
  size_t bytes = 0;
  while (bytes < text.size()) {
    const Character first = first_character(text.substr(bytes));
    if (!is_whitespace(first.code)) break;
    bytes += first.bytes;
  }
  return bytes;
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(const std::vector<AddedToken>& tokens,
                                   const std::vector<std::string>& written)
    : tokens_(tokens), nodes_(1) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (written[i].empty()) continue;
    begins_[static_cast<uint8_t>(written[i][0])] = true;
    int32_t node = 0;
    for (const char c : written[i]) {
      const auto byte = static_cast<uint8_t>(c);
      const auto& next = nodes_[node].next;
      const auto found = std::find_if(next.begin(), next.end(),
                                      [&](const auto& branch) { return branch.first == byte; });
      if (found != next.end()) {
        node = found->second;
      } else {
        const auto fresh = static_cast<int32_t>(nodes_.size());
        nodes_[node].next.emplace_back(byte, fresh);
        nodes_.emplace_back();
        node = fresh;
      }
    }
    if (nodes_[node].token < 0) nodes_[node].token = static_cast<int32_t>(i);
  }
}

int32_t AddedTokenFinder::longest(std::string_view text, size_t& bytes) const {
  int32_t token = -1, node = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    const auto& next = nodes_[node].next;
    const auto found = std::find_if(next.begin(), next.end(),
                                    [&](const auto& branch) { return branch.first == byte; });
    if (found == next.end()) break;
    node = found->second;
    if (nodes_[node].token >= 0) {
      token = nodes_[node].token;
      bytes = i + 1;
    }
  }
  return token;
}

void AddedTokenFinder::find(std::string_view text, SpecialTokens special,
                            FunctionRef<const Part&> found) const {
  size_t given = 0, at = 0;
  while (at < text.size()) {
    if (!begins_[static_cast<uint8_t>(text[at])]) {
      ++at;
      continue;
    }
    size_t bytes = 0;
    const int32_t index = longest(text.substr(at), bytes);
    if (index < 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[index];
    size_t begin = at, end = at + bytes;
    at = end;
    if (token.special && special == SpecialTokens::as_text) continue;
    if (token.single_word && is_within_word(text.substr(0, begin), text.substr(end))) continue;
    if (token.lstrip) begin = std::max(begin - spaces_at_end(text.substr(0, begin)), given);
    if (token.rstrip) end += spaces_at_start(text.substr(end));
    if (given < begin) found(Part{text.substr(given, begin - given), nullptr});
    found(Part{text.substr(begin, end - begin), &token});
    given = end;
  }
  if (given < text.size()) found(Part{text.substr(given), nullptr});
}

}  // namespace attnres
