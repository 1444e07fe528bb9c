#include "attnres/support/json.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "attnres/support/format.h"

namespace attnres {
namespace {

std::string line_and_column(std::string_view text, size_t byte) {
  const std::string_view before = text.substr(0, std::min(byte, text.size()));
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  const size_t newline = before.rfind('\n');
  const size_t column = before.size() - (newline == std::string_view::npos ? 0 : newline + 1);
  return fmt::format("line {}, column {}", line, std::max<size_t>(column, 1));
}

// Makes a value of what the library's parser finds, which does not recurse. Objects are filled
// without a search for each key, which would be quadratic.
class JsonBuilder final : public Json::json_sax_t {
 public:
  JsonBuilder(std::string_view text, const std::string& what) : text_(text), what_(what) {}
  JsonBuilder(const JsonBuilder&) = delete;
  JsonBuilder& operator=(const JsonBuilder&) = delete;
  ~JsonBuilder() override { take_apart(&root_); }
  Json take() { return std::move(root_); }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(int64_t value) override { return add(value); }
  bool number_unsigned(uint64_t value) override { return add(value); }
  bool number_float(double value, const std::string&) override { return add(value); }
  bool string(std::string& value) override { return add(std::move(value)); }
  bool binary(Json::binary_t&) override { return false; }  // no text has any

  bool start_object(size_t) override { return open(Json::object()); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_array() override { return close(); }
  bool end_object() override {
    std::vector<std::string_view> keys;
    for (const auto& [key, value] : members(*open_.back())) keys.push_back(key);
    std::sort(keys.begin(), keys.end());
    const auto twice = std::adjacent_find(keys.begin(), keys.end());
    if (twice != keys.end()) {
      fail("{}: {} is there twice; keep one of them", what_, one_line(path_to(*twice)));
    }
    return close();
  }
  bool key(std::string& key) override {
    key_ = std::move(key);
    return true;
  }

  bool parse_error(size_t byte, const std::string& token, const Json::exception& error) override {
    constexpr int kNumberTooLarge = 406;
    const std::string place = line_and_column(text_, byte);
    if (error.id == kNumberTooLarge) {
      fail("{}: {}: the number {} is too large for a double", what_, place, one_line(token));
    }
    // "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error ...": keep
    // the part after the position.
    std::string_view reason = error.what();
    reason.remove_prefix(std::min(reason.size(), reason.find("syntax error")));
    fail("{}: not valid JSON at {}: {}", what_, place, one_line(reason));
  }

 private:
  static Json::object_t& members(Json& object) { return object.get_ref<Json::object_t&>(); }

  // Puts the value where it belongs, and keeps its address while it is the last one there.
  bool add(Json value) {
    if (open_.empty()) {
      last_ = &(root_ = std::move(value));
    } else if (open_.back()->is_array()) {
      last_ = &open_.back()->get_ref<Json::array_t&>().emplace_back(std::move(value));
    } else {
      last_ = &members(*open_.back()).emplace_back(std::move(key_), std::move(value)).second;
    }
    return true;
  }

  bool open(Json empty) {
    require(open_.size() < kDeepestJson, "{}: more than {} lists and objects in each other", what_,
            kDeepestJson);
    add(std::move(empty));
    open_.push_back(last_);
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  // Such as train.steps, or runs[2].name, of a key of the innermost object.
  std::string path_to(std::string_view key) const {
    std::string path;
    for (size_t i = 0; i + 1 < open_.size(); ++i) {
      const bool in_list = open_[i]->is_array();
      path += in_list ? fmt::format("[{}]", open_[i]->size() - 1) : members(*open_[i]).back().first;
      if (open_[i + 1]->is_object()) path += '.';
    }
    return path + std::string(key);
  }

  std::string_view text_;
  const std::string& what_;
  Json root_;
  std::vector<Json*> open_;  // the lists and objects around what comes next
  Json* last_ = nullptr;
  std::string key_;
};

}  // namespace

void to_json(Json& json, const NumberOrWord& value) {
  if (value.word.empty()) {
    json = value.number;
  } else {
    json = value.word;
  }
}

Json parse_json(std::string_view text, const std::string& what) {
  JsonBuilder builder(text, what);
  Json::sax_parse(text, &builder);
  return builder.take();
}

void take_apart(Json* value) noexcept {
  if (value->is_array()) {
    auto& items = value->get_ref<Json::array_t&>();
    for (; !items.empty(); items.pop_back()) take_apart(&items.back());
  } else if (value->is_object()) {
    auto& members = value->get_ref<Json::object_t&>();
    for (; !members.empty(); members.pop_back()) take_apart(&members.back().second);
  }
}

Json read_json(const std::filesystem::path& path) {
  return parse_json(read_file(path), path.string());
}

std::optional<int64_t> whole_number(const Json& value) {
  if (!value.is_number_integer()) return std::nullopt;
  if (value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX) return std::nullopt;
  return value.get<int64_t>();
}

const char* expected_whole_number(const Json& value) {
  const bool beyond = value.is_number() && std::abs(value.get<double>()) >= 0x1p63;
  return beyond ? "a whole number between -2^63 and 2^63" : "a whole number";
}

std::string one_line_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string shown(const Json& value) {
  return one_line(one_line_of(value));
}

std::vector<std::string> differences(const Json& before, const Json& after,
                                     const std::string& path) {
  if (before.is_object() && after.is_object()) {
    std::vector<std::string> found;
    const auto compare = [&](const std::string& key) {
      const Json a = before.value(key, Json()), b = after.value(key, Json());
      const auto inner = differences(a, b, path.empty() ? key : path + "." + key);
      found.insert(found.end(), inner.begin(), inner.end());
    };
    for (const auto& [key, value] : before.items()) compare(key);
    for (const auto& [key, value] : after.items()) {
      if (!before.contains(key)) compare(key);
    }
    return found;
  }
  if (before == after) return {};
  return {fmt::format("{}: {} -> {}", path, shown(before), shown(after))};
}

}  // namespace attnres
