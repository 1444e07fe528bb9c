#include "attnres/support/config_schema.h"

#include <fmt/core.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "attnres/support/config.h"

namespace attnres {
namespace {

// 16 for 16.0: limits of whole numbers.
Json plain(double number) {
  const bool is_whole = std::abs(number) < 0x1p53 && std::trunc(number) == number;
  return is_whole ? Json(static_cast<int64_t>(number)) : Json(number);
}

void add_limits(Json& schema, const Limits& limits) {
  if (!std::isinf(limits.least)) {
    schema[limits.above ? "exclusiveMinimum" : "minimum"] = plain(limits.least);
  }
  if (!std::isinf(limits.most)) {
    schema[limits.below ? "exclusiveMaximum" : "maximum"] = plain(limits.most);
  }
  for (const Choice& choice : limits.choices) schema["enum"].push_back(choice.name);
}

Json of_type(const char* type, const Limits& limits = {}) {
  Json schema = {{"type", type}};
  add_limits(schema, limits);
  return schema;
}

Json list_of(const Json& items) {
  return {{"type", "array"}, {"items", items}};
}

Json value_schema(const ConfigKey& key) {
  switch (key.type) {
    case KeyType::boolean:
      return of_type("boolean");
    case KeyType::whole:
      return of_type("integer", key.limits);
    case KeyType::number:
      return of_type("number", key.limits);
    case KeyType::text:
      return of_type("string", key.limits);
    case KeyType::number_or_word: {
      Limits numbers = key.limits, words = key.limits;
      numbers.choices.clear();
      words.least = -INFINITY;
      words.most = INFINITY;
      return {{"anyOf", {of_type("number", numbers), of_type("string", words)}}};
    }
    case KeyType::texts:
      return list_of(of_type("string", key.limits));
    case KeyType::numbers:
      return list_of(of_type("number", key.limits));
    case KeyType::named_numbers:
      return {{"type", "object"}, {"additionalProperties", of_type("number", key.limits)}};
    case KeyType::any:
      return Json::object();
    case KeyType::object:
      return object_schema(key.keys);
    case KeyType::objects:
      return list_of(object_schema(key.keys));
    case KeyType::recipe_keys: {
      Json schema = {{"type", "object"}, {"$ref", "#/$defs/recipe_keys"}};
      if (!key.keys.empty()) schema["properties"] = object_schema(key.keys)["properties"];
      schema["unevaluatedProperties"] = false;
      return schema;
    }
    case KeyType::file_or_recipe:
      return {{"anyOf", {of_type("string"), Json{{"$ref", "#/$defs/recipe"}}}}};
  }
  return Json::object();
}

// An object whose further keys its `type` chooses.
Json variants_schema(const ConfigKey& key) {
  Json all = Json::array();
  for (const ConfigVariant& variant : key.variants) {
    std::vector<ConfigKey> keys = key.keys;
    keys.insert(keys.end(), variant.keys.begin(), variant.keys.end());
    Json schema = object_schema(keys);
    schema["properties"]["type"] = {{"const", variant.type}, {"description", variant.meaning}};
    all.push_back(schema);
  }
  return {{"oneOf", all}};
}

}  // namespace

Json key_schema(const ConfigKey& key) {
  Json schema = key.variants.empty() ? value_schema(key) : variants_schema(key);
  std::string text = key.meaning;
  for (const Choice& choice : key.limits.choices) {
    if (!choice.meaning.empty()) text += fmt::format("; {}: {}", choice.name, choice.meaning);
  }
  if (!text.empty()) schema["description"] = text;
  if (!key.standard.empty() && key.limits.otherwise.empty() && !key.limits.required) {
    schema["default"] = Json::parse(key.standard);
  }
  return schema;
}

Json object_schema(const std::vector<ConfigKey>& keys) {
  Json schema = {{"type", "object"}};
  Json properties = Json::object(), required = Json::array();
  Json further = keys.empty() ? Json(true) : Json(false);
  for (const ConfigKey& key : keys) {
    if (key.is_free()) {
      further = key_schema(key);
    } else {
      properties[key.name] = key_schema(key);
    }
    if (key.limits.required) required.push_back(key.name);
  }
  if (!properties.empty()) schema["properties"] = properties;
  if (!required.empty()) schema["required"] = required;
  schema["additionalProperties"] = further;
  return schema;
}

Json file_schema(const std::string& title, const std::vector<ConfigKey>& keys) {
  Json schema = {{"$schema", kSchemaDialect}, {"title", title}};
  schema.update(object_schema(keys));
  schema["properties"][kSchemaKey] = {{"type", "string"}, {"description", "where this schema is"}};
  return schema;
}

}  // namespace attnres
