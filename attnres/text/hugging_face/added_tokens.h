// Tokens that are found in a text before it is tokenized ("added_tokens").
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "attnres/text/hugging_face/function_ref.h"

namespace attnres {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool single_word = false;  // only where no word goes on beside it
  bool lstrip = false;       // with all whitespace before it
  bool rstrip = false;       // and behind it
  bool normalized = false;   // looked for in normalized text, by its normalized content
  bool special = false;      // a control token

  bool operator==(const AddedToken&) const = default;
};

// Whether special tokens in a text become control tokens or are text as any other.
enum class SpecialTokens { as_text, as_tokens };

// Finds tokens from left to right, at each place the longest. Immutable.
class AddedTokenFinder {
 public:
  // `written`: how each token stands in the text. The first of two that are written alike counts.
  AddedTokenFinder(const std::vector<AddedToken>& tokens, const std::vector<std::string>& written);

  // A part of the text, and its token, null where there is none.
  struct Part {
    std::string_view text;
    const AddedToken* token = nullptr;
  };
  // The whole text, in parts.
  void find(std::string_view text, SpecialTokens special, FunctionRef<const Part&> found) const;

 private:
  // A node of the tree of what the tokens begin with.
  struct Node {
    std::vector<std::pair<uint8_t, int32_t>> next;  // by byte
    int32_t token = -1;
  };
  // The token that begins the text, -1 without one, and how long it is written.
  int32_t longest(std::string_view text, size_t& bytes) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_;
  std::array<bool, 256> begins_{};
};

}  // namespace attnres
