// Whether a value meets a JSON schema, for the keywords that tests use, as the schema's
// specification has them.
#pragma once

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>

#include "attnres/support/json.h"

namespace attnres::testing {

inline int64_t characters(const std::string& text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; });
}

inline bool is_of_type(const Json& value, const std::string& type) {
  if (type == "integer") {
    return value.is_number() && std::floor(value.get<double>()) == value.get<double>();
  }
  if (type == "number") return value.is_number();
  return type == (value.is_boolean() ? "boolean" : value.type_name());
}

inline bool meets(const Json& schema, const Json& value, const Json& root) {
  if (schema.is_boolean()) return schema.get<bool>();
  const auto holds = [&](const std::string& name, auto&& check) {
    return !schema.contains(name) || check(schema[name]);
  };
  const auto any = [&](const Json& list, auto&& check) {
    return std::any_of(list.begin(), list.end(), check);
  };
  const auto here = [&](const Json& s) { return meets(s, value, root); };
  bool good =
      holds("$ref",
            [&](const Json& to) {
              return here(root[Json::json_pointer(to.get<std::string>().substr(1))]);
            }) &&
      holds("const", [&](const Json& only) { return value == only; }) &&
      holds("enum",
            [&](const Json& all) { return any(all, [&](const Json& v) { return v == value; }); }) &&
      holds("anyOf", [&](const Json& all) { return any(all, here); }) &&
      holds("allOf", [&](const Json& all) { return std::all_of(all.begin(), all.end(), here); }) &&
      holds("oneOf",
            [&](const Json& all) { return std::count_if(all.begin(), all.end(), here) == 1; }) &&
      holds("type", [&](const Json& types) {
        const Json list = types.is_array() ? types : Json::array({types});
        return any(list, [&](const Json& t) { return is_of_type(value, t.get<std::string>()); });
      });
  if (value.is_number()) {
    const double x = value.get<double>();
    good = good && holds("minimum", [&](const Json& n) { return x >= n.get<double>(); }) &&
           holds("maximum", [&](const Json& n) { return x <= n.get<double>(); }) &&
           holds("exclusiveMinimum", [&](const Json& n) { return x > n.get<double>(); }) &&
           holds("exclusiveMaximum", [&](const Json& n) { return x < n.get<double>(); }) &&
           holds("multipleOf", [&](const Json& n) { return std::fmod(x, n.get<double>()) == 0; });
  }
  if (value.is_string()) {
    const auto text = value.get<std::string>();
    good = good && holds("minLength", [&](const Json& n) { return characters(text) >= n; }) &&
           holds("maxLength", [&](const Json& n) { return characters(text) <= n; }) &&
           holds("pattern", [&](const Json& pattern) {
             return std::regex_search(text, std::regex(pattern.get<std::string>()));
           });
  }
  if (value.is_array()) {
    const size_t first = schema.contains("prefixItems") ? schema["prefixItems"].size() : 0;
    good = good && holds("minItems", [&](const Json& n) { return value.size() >= n; }) &&
           holds("maxItems", [&](const Json& n) { return value.size() <= n; });
    for (size_t i = 0; i < value.size(); ++i) {
      const Json of_item = i < first ? schema["prefixItems"][i] : schema.value("items", Json(true));
      good = good && meets(of_item, value[i], root);
    }
  }
  if (value.is_object()) {
    good = good && holds("minProperties", [&](const Json& n) { return value.size() >= n; }) &&
           holds("maxProperties", [&](const Json& n) { return value.size() <= n; }) &&
           holds("required", [&](const Json& names) {
             return std::all_of(names.begin(), names.end(), [&](const Json& name) {
               return value.contains(name.get<std::string>());
             });
           });
    const Json properties = schema.value("properties", Json::object());
    for (const auto& [name, item] : value.items()) {
      const Json of_item = properties.contains(name)
                               ? properties[name]
                               : schema.value("additionalProperties", Json(true));
      good = good && meets(of_item, item, root);
    }
  }
  return good;
}

inline bool meets(const Json& schema, const Json& value) {
  return meets(schema, value, schema);
}

}  // namespace attnres::testing
