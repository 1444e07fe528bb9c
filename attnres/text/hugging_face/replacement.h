// "Replace" of normalizers and decoders: every match of a text or a regular expression.
#pragma once

#include <optional>
#include <string>

#include "attnres/text/hugging_face/json_part.h"
#include "attnres/text/hugging_face/regex.h"

namespace attnres {

// Throws Error where a tokenizer's steps make a text that much longer that they are there to fill
// the memory: each may double it.
void check_growth(size_t bytes_before, size_t bytes_after);

class Replacement {
 public:
  // {"pattern": {"String": TEXT} or {"Regex": EXPRESSION}, "content": TEXT}
  explicit Replacement(const JsonPart& part);

  // Throws Error as check_growth.
  void apply(std::string& text) const;

 private:
  std::string literal_;
  std::optional<TextRegex> regex_;
  std::string content_;
};

}  // namespace attnres
