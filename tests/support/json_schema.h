// Whether a value is as a JSON Schema says (draft 2020-12), of the keywords that ours have; an
// unknown keyword is a failure, so that none goes unheard.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <string>

#include "attnres/support/json.h"

namespace attnres::testing {

class JsonSchema {
 public:
  explicit JsonSchema(Json schema) : root_(std::move(schema)) {}

  bool accepts(const Json& value) const { return accepts(root_, value); }

 private:
  const Json& target(const Json& ref) const {
    return root_.at(Json::json_pointer(ref.get<std::string>().substr(1)));
  }

  bool accepts(const Json& schema, const Json& value) const {
    if (schema.is_boolean()) return schema.get<bool>();
    for (const auto& [keyword, argument] : schema.items()) {
      if (!holds(schema, keyword, argument, value)) return false;
    }
    return true;
  }

  bool holds(const Json& schema, const std::string& keyword, const Json& argument,
             const Json& value) const {
    static const std::set<std::string> notes = {
        "$schema", "$defs", "title", "description", "default", "properties", "patternProperties"};
    if (notes.count(keyword) > 0) return keyword[0] != 'p' || holds_in_properties(schema, value);
    if (keyword == "type") return is_a(argument, value);
    if (keyword == "enum") {
      return std::find(argument.begin(), argument.end(), value) != argument.end();
    }
    if (keyword == "const") return value == argument;
    if (keyword == "minimum") return !value.is_number() || value >= argument;
    if (keyword == "maximum") return !value.is_number() || value <= argument;
    if (keyword == "exclusiveMinimum") return !value.is_number() || value > argument;
    if (keyword == "exclusiveMaximum") return !value.is_number() || value < argument;
    if (keyword == "$ref") return accepts(target(argument), value);
    if (keyword == "anyOf") return count(argument, value) > 0;
    if (keyword == "oneOf") return count(argument, value) == 1;
    if (keyword == "items") {
      return !value.is_array() || std::all_of(value.begin(), value.end(), [&](const Json& item) {
        return accepts(argument, item);
      });
    }
    if (keyword == "required") {
      return !value.is_object() ||
             std::all_of(argument.begin(), argument.end(),
                         [&](const Json& k) { return value.contains(k.get<std::string>()); });
    }
    if (keyword == "additionalProperties") return others_hold(schema, argument, value, nullptr);
    if (keyword == "unevaluatedProperties") {
      return others_hold(schema, argument, value, &target(schema.at("$ref")));
    }
    ADD_FAILURE() << "this validator does not know " << keyword;
    return false;
  }

  // Of one property: the schemas that it has by its name.
  static std::vector<Json> schemas_of(const Json& schema, const std::string& name) {
    std::vector<Json> all;
    const Json properties = schema.value("properties", Json::object());
    if (properties.contains(name)) all.push_back(properties[name]);
    const Json patterns = schema.value("patternProperties", Json::object());
    for (const auto& [pattern, further] : patterns.items()) {
      if (std::regex_search(name, std::regex(pattern))) all.push_back(further);
    }
    return all;
  }

  bool holds_in_properties(const Json& schema, const Json& value) const {
    if (!value.is_object()) return true;
    for (const auto& [name, property] : value.items()) {
      for (const Json& further : schemas_of(schema, name)) {
        if (!accepts(further, property)) return false;
      }
    }
    return true;
  }

  // The properties that neither the schema nor the other one has by name.
  bool others_hold(const Json& schema, const Json& argument, const Json& value,
                   const Json* other) const {
    if (!value.is_object()) return true;
    for (const auto& [name, property] : value.items()) {
      const bool is_known = !schemas_of(schema, name).empty() ||
                            (other != nullptr && !schemas_of(*other, name).empty());
      if (!is_known && !accepts(argument, property)) return false;
    }
    return true;
  }

  int count(const Json& schemas, const Json& value) const {
    return static_cast<int>(std::count_if(schemas.begin(), schemas.end(), [&](const Json& schema) {
      return accepts(schema, value);
    }));
  }

  static bool is_a(const Json& type, const Json& value) {
    if (type == "object") return value.is_object();
    if (type == "array") return value.is_array();
    if (type == "string") return value.is_string();
    if (type == "boolean") return value.is_boolean();
    if (type == "integer") return value.is_number_integer();
    EXPECT_EQ(type, "number");
    return value.is_number();
  }

  Json root_;
};

}  // namespace attnres::testing
