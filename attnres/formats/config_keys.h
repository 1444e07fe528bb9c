// Reading config.json, with errors that name the file and the key.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "attnres/model/config.h"
#include "attnres/support/error.h"
#include "attnres/support/json.h"

namespace attnres {

// The keys of an object in config.json, with errors that name the file and the key. Copies know
// together which keys were asked for.
class ConfigKeys {
 public:
  ConfigKeys(const Json& object, std::string what)
      : object_(object), what_(std::move(what)), asked_(std::make_shared<std::set<std::string>>()) {
    require(object.is_object(), "{}: expected an object with keys, got {}", what_, shown(object));
  }

  // Absent or null.
  bool missing(const char* key) const {
    asked_->insert(key);
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null();
  }

  const Json& at(const char* key) const {
    require(!missing(key), "{}: the key {} is missing", what_, key);
    return object_.at(key);
  }

  int64_t whole(const char* key) const { return whole(key, at(key)); }
  int64_t whole(const char* key, int64_t otherwise) const {
    return missing(key) ? otherwise : whole(key);
  }
  // Of what has to be there, where a recipe's 0 stands for a default: 1 or more.
  int64_t positive(const char* key) const {
    const int64_t value = whole(key);
    require(value >= 1, "{}: {}: expected 1 or more, got {}", what_, key, value);
    return value;
  }
  // `otherwise`, which may be that 0, where the key is missing.
  int64_t positive(const char* key, int64_t otherwise) const {
    return missing(key) ? otherwise : positive(key);
  }
  double number(const char* key, double otherwise) const {
    if (missing(key)) return otherwise;
    const Json& value = at(key);
    require(value.is_number(), "{}: {}: expected a number, got {}", what_, key, shown(value));
    return value.get<double>();
  }
  bool flag(const char* key, bool otherwise) const {
    if (missing(key)) return otherwise;
    const Json& value = at(key);
    require(value.is_boolean(), "{}: {}: expected true or false, got {}", what_, key, shown(value));
    return value.get<bool>();
  }
  std::string text(const char* key) const {
    const Json& value = at(key);
    require(value.is_string(), "{}: {}: expected text, got {}", what_, key, shown(value));
    return value.get<std::string>();
  }

  std::vector<std::string> texts(const char* key) const {
    std::vector<std::string> values;
    for (const Json& value : list(key)) {
      require(value.is_string(), "{}: {}: expected texts, got {}", what_, key, shown(value));
      values.push_back(value.get<std::string>());
    }
    return values;
  }
  std::vector<int64_t> whole_numbers(const char* key) const {
    std::vector<int64_t> values;
    for (const Json& value : list(key)) values.push_back(whole(key, value));
    return values;
  }

  // Refuses a value other than the one that this program computes.
  void only(const char* key, const Json& computed) const {
    require(missing(key) || at(key) == computed, "{}: {} is {}, but attnres computes only {}",
            what_, key, missing(key) ? "" : shown(at(key)), computed.dump());
  }

  ConfigKeys inner(const char* key) const { return {at(key), what_ + ": " + key}; }
  const std::string& what() const { return what_; }

  // Once all is read: the keys that nobody asked for and that look like a misspelling of one that
  // was asked for and is not there, each with that one, as "rms_eps (rms_norm_eps?)".
  std::vector<std::string> misspelled() const;

 private:
  int64_t whole(const char* key, const Json& value) const {
    const auto number = whole_number(value);
    require(number.has_value(), "{}: {}: expected {}, got {}", what_, key,
            expected_whole_number(value), shown(value));
    return *number;
  }
  const Json& list(const char* key) const {
    const Json& value = at(key);
    require(value.is_array(), "{}: {}: expected a list, got {}", what_, key, shown(value));
    return value;
  }

  const Json& object_;
  std::string what_;
  std::shared_ptr<std::set<std::string>> asked_;
};

// num_hidden_layers, so few that a list of them may be made before the model is checked.
int64_t read_layer_count(const ConfigKeys& keys);

// The most tokens of a sequence, 2 to kMostContext; `otherwise` where the file leaves it out.
int64_t read_context(const ConfigKeys& keys, const char* key,
                     std::optional<int64_t> otherwise = {});
// vocab_size, 1 to INT32_MAX; `otherwise` where the file leaves it out.
int64_t read_vocabulary(const ConfigKeys& keys, std::optional<int64_t> otherwise = {});

// What keys of a recipe's `model` are called in a file: {"kv_heads", "num_key_value_heads"}.
using FileNames = std::vector<std::pair<std::string_view, std::string_view>>;
// Those that Llama's relatives, DeepSeek and Kimi have in common, after one's own.
FileNames with_common_names(FileNames own);

// A recipe's `model`, made of what the file says. Throws Error naming the file, and its own key
// where `names` has it, where it is not one; `path` is what the others lie under.
ModelConfig read_stored_model(const Json& model, const ConfigKeys& keys, const char* path,
                              const FileNames& names = {});

}  // namespace attnres
