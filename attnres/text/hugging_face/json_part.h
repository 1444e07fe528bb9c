// Reading the parts of a tokenizer.json, with errors that name the file and the part.
#pragma once

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "attnres/support/json.h"
#include "attnres/text/tokenizer.h"

namespace attnres {

// An object of the file, such as "pre_tokenizer", and the name by which errors call it.
class JsonPart {
 public:
  JsonPart(const Json& json, std::string name) : json_(json), name_(std::move(name)) {}

  const std::string& name() const { return name_; }
  const Json& json() const { return json_; }

  // Throws UnreadTokenizer with what was expected in place of this part.
  [[noreturn]] void refuse(const std::string& expected) const {
    throw UnreadTokenizer(
        fmt::format("{}: expected {}, found {}; score and generate take token "
                    "ids without a tokenizer (--ids)",
                    name_, expected, shown(json_)));
  }

  bool is_null() const { return json_.is_null(); }
  // The part under a key; null without one.
  JsonPart at(const char* key) const {
    static const Json kNull;
    if (!json_.is_object()) refuse("an object");
    const auto found = json_.find(key);
    return {found == json_.end() ? kNull : *found, fmt::format("{}.{}", name_, key)};
  }
  // The members of a list.
  std::vector<JsonPart> list() const {
    if (!json_.is_array()) refuse("a list");
    std::vector<JsonPart> parts;
    for (size_t i = 0; i < json_.size(); ++i) {
      parts.emplace_back(json_[i], fmt::format("{}[{}]", name_, i));
    }
    return parts;
  }

  std::string text() const {
    if (!json_.is_string()) refuse("a text");
    return json_.get<std::string>();
  }
  std::string type() const { return at("type").text(); }
  bool flag() const {
    if (!json_.is_boolean()) refuse("true or false");
    return json_.get<bool>();
  }
  bool flag(bool otherwise) const { return is_null() ? otherwise : flag(); }
  int64_t count() const {
    const auto number = whole_number(json_);
    if (!number || *number < 0) refuse("a whole number that is not negative");
    return *number;
  }

 private:
  const Json& json_;
  std::string name_;
};

}  // namespace attnres
