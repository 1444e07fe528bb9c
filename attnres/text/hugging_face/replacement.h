// "Replace" of normalizers and decoders: every match of a text or a regular expression.
#pragma once

#include <optional>
#include <string>

#include "attnres/text/hugging_face/json_part.h"
#include "attnres/text/hugging_face/regex.h"

namespace attnres {

class Replacement {
 public:
  // {"pattern": {"String": TEXT} or {"Regex": EXPRESSION}, "content": TEXT}
  explicit Replacement(const JsonPart& part);

  void apply(std::string& text) const;

 private:
  std::string literal_;
  std::optional<TextRegex> regex_;
  std::string content_;
};

}  // namespace attnres
