// Configurations are plain structs whose fields visit themselves:
//
//   struct Schedule {
//     int64_t warmup = 100;
//     template <class V> void visit(V& v) {
//       v("warmup", warmup, "steps of linear warm-up", at_least(0));
//     }
//   };
//
// What a key means and may be stands there alone (config_key.h); both may be left out of what is no
// user's. read_config fills one from JSON, refusing unknown keys (the nearest known one is named),
// wrong types and what is beyond the limits; write_config gives the JSON back with every default
// filled in; list_keys gives what is known of the keys.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <type_traits>
#include <vector>

#include "attnres/support/config_key.h"
#include "attnres/support/error.h"
#include "attnres/support/json.h"

namespace attnres {

namespace detail {
[[noreturn]] void wrong_type(const std::string& key, const char* expected, const Json& value);
[[noreturn]] void unknown_key(const std::string& path, const std::string& key,
                              const std::vector<std::string>& known);
[[noreturn]] void missing_key(const std::string& path, const char* key);
// Throw UsageError naming the key unless the value is within the limits.
void check_limits(const std::string& key, int64_t value, const Limits& limits);
void check_limits(const std::string& key, double value, const Limits& limits);
void check_limits(const std::string& key, const std::string& value, const Limits& limits);
void check_limits(const std::string& key, const NumberOrWord& value, const Limits& limits);
void check_limits(const std::string& key, const std::vector<std::string>& values,
                  const Limits& limits);
void check_limits(const std::string& key, const NamedNumbers& values, const Limits& limits);
// Of what has none.
template <class T>
void check_limits(const std::string& /*key*/, const T& /*value*/, const Limits& /*limits*/) {}
}  // namespace detail

// A file may name its schema (JSON Schema), by which editors complete and check it.
inline constexpr const char* kSchemaKey = "$schema";

template <class T>
void read_config(const Json& json, const std::string& path, T& out);

// Visitor that reads. Keys that are absent keep the value they have.
class ConfigReader {
 public:
  ConfigReader(const Json& object, std::string path) : object_(object), path_(std::move(path)) {
    if (!object.is_object()) detail::wrong_type(path_, "an object", object);
  }

  template <class T>
  void operator()(const char* key, T& value, const char* /*meaning*/ = "",
                  const Limits& limits = {}) {
    known_.push_back(key);
    const auto it = object_.find(key);
    if (it != object_.end()) {
      const std::string path = path_.empty() ? key : path_ + "." + key;
      read(*it, path, value);
      detail::check_limits(path, value, limits);
    } else if (limits.required) {
      detail::missing_key(path_, key);
    }
  }

  // Call once every field was visited: refuses keys that no field has.
  void finish() const {
    for (const auto& [key, value] : object_.items()) {
      bool found = path_.empty() && key == kSchemaKey;
      if (found && !value.is_string()) detail::wrong_type(key, "text", value);
      for (const auto& known : known_) found = found || known == key;
      if (!found) detail::unknown_key(path_, key, known_);
    }
  }

 private:
  static void read(const Json& json, const std::string& key, bool& value) {
    if (!json.is_boolean()) detail::wrong_type(key, "true or false", json);
    value = json.get<bool>();
  }
  static void read(const Json& json, const std::string& key, int64_t& value) {
    const auto whole = whole_number(json);
    if (!whole) detail::wrong_type(key, expected_whole_number(json), json);
    value = *whole;
  }
  static void read(const Json& json, const std::string& key, double& value) {
    if (!json.is_number()) detail::wrong_type(key, "a number", json);
    value = json.get<double>();
  }
  static void read(const Json& json, const std::string& key, std::string& value) {
    if (!json.is_string()) detail::wrong_type(key, "text", json);
    value = json.get<std::string>();
  }
  static void read(const Json& json, const std::string& key, NumberOrWord& value) {
    if (json.is_number()) {
      value = json.get<double>();
    } else if (json.is_string() && !json.get<std::string>().empty()) {
      value.word = json.get<std::string>();
    } else {
      detail::wrong_type(key, "a number or a word", json);
    }
  }
  static void read(const Json& json, const std::string& key, std::vector<std::string>& value) {
    if (!json.is_array()) detail::wrong_type(key, "a list of texts", json);
    value.clear();
    for (const auto& item : json) read(item, key, value.emplace_back());
  }
  static void read(const Json& json, const std::string& key, NamedNumbers& value) {
    if (!json.is_object()) detail::wrong_type(key, "an object of numbers", json);
    value.clear();
    for (const auto& [name, number] : json.items()) {
      read(number, fmt::format("{}.{}", key, name), value.emplace_back(name, 0.0).second);
    }
  }
  // A part whose keys another reader checks (a mechanism's own settings).
  static void read(const Json& json, const std::string& key, Json& value) {
    if (!json.is_object()) detail::wrong_type(key, "an object", json);
    value = json;
  }
  template <class T>
  static void read(const Json& json, const std::string& key, T& value) {
    read_config(json, key, value);
  }

  const Json& object_;
  std::string path_;
  std::vector<std::string> known_;
};

// Visitor that writes. NamedNumbers without any are left out.
class ConfigWriter {
 public:
  template <class T>
  void operator()(const char* key, T& value, const char* /*meaning*/ = "",
                  const Limits& /*limits*/ = {}) {
    if constexpr (requires(ConfigWriter w) { value.visit(w); }) {
      ConfigWriter inner;
      value.visit(inner);
      json[key] = inner.json;
    } else if constexpr (std::is_same_v<T, NamedNumbers>) {
      for (const auto& [name, number] : value) json[key][name] = number;
    } else {
      json[key] = value;
    }
  }
  Json json = Json::object();
};

// Visitor that lists the keys, with what their definitions say of them.
class ConfigLister {
 public:
  template <class T>
  void operator()(const char* name, T& value, const char* meaning = "", const Limits& limits = {}) {
    ConfigKey& key = keys.emplace_back(
        ConfigKey{.name = name, .type = type_of<T>(), .meaning = meaning, .limits = limits});
    if constexpr (requires(ConfigLister lister) { value.visit(lister); }) {
      ConfigLister inner;
      value.visit(inner);
      key.keys = std::move(inner.keys);
    } else if (key.type == KeyType::named_numbers) {
      key.standard = "{}";
    } else if (key.type != KeyType::object) {
      key.standard = Json(value).dump();
    }
  }

  std::vector<ConfigKey> keys;

 private:
  template <class T>
  static constexpr KeyType type_of() {
    if (std::is_same_v<T, bool>) return KeyType::boolean;
    if (std::is_same_v<T, int64_t>) return KeyType::whole;
    if (std::is_same_v<T, double>) return KeyType::number;
    if (std::is_same_v<T, std::string>) return KeyType::text;
    if (std::is_same_v<T, NumberOrWord>) return KeyType::number_or_word;
    if (std::is_same_v<T, std::vector<std::string>>) return KeyType::texts;
    if (std::is_same_v<T, NamedNumbers>) return KeyType::named_numbers;
    return KeyType::object;
  }
};

// `path` names the object in errors ("model.depth_mixing"); empty for the whole file.
template <class T>
void read_config(const Json& json, const std::string& path, T& out) {
  ConfigReader reader(json, path);
  out.visit(reader);
  reader.finish();
}

template <class T>
Json write_config(T config) {
  ConfigWriter writer;
  config.visit(writer);
  return writer.json;
}

// Throws UsageError naming the key where one is beyond its limits: of what was not read.
template <class T>
void check_config(const T& config, const std::string& path) {
  T read;
  read_config(write_config(config), path, read);
}

// The keys of a configuration, whose values are the defaults.
template <class T>
std::vector<ConfigKey> list_keys(T defaults) {
  ConfigLister lister;
  defaults.visit(lister);
  return std::move(lister.keys);
}

// Applies one `--set path.to.key=value`. The value is read as JSON, or as text where it isn't JSON.
// Throws UsageError on a missing '=', a path through something that is not an object, and on JSON
// that parse_json refuses for more than its syntax.
void apply_override(Json& config, const std::string& assignment);

}  // namespace attnres
