// Regular expressions of tokenizer.json files (oniguruma.h), run by PCRE2.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

#include "attnres/text/hugging_face/function_ref.h"

namespace attnres {

// A part of a text, and whether it matches.
struct TextRange {
  size_t begin = 0, end = 0;
  bool match = false;
};

// Serves any number of threads.
class TextRegex {
 public:
  // Throws UnreadTokenizer where the expression is not read here.
  explicit TextRegex(std::string_view pattern);
  // Matches this text and nothing else.
  static TextRegex literal(std::string_view text);
  ~TextRegex();
  TextRegex(TextRegex&&) noexcept;
  TextRegex& operator=(TextRegex&&) noexcept;

  // All of a text that is UTF-8, in order: the matches from left to right, and what is between
  // them where it is not empty. Throws Error naming the expression where looking for a match takes
  // more steps than a hundred times the text's length and ten million.
  void find_all(std::string_view text, FunctionRef<const TextRange&> found) const;

 private:
  struct Code;
  explicit TextRegex(std::unique_ptr<Code> code);
  std::unique_ptr<Code> code_;
};

}  // namespace attnres
