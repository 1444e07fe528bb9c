#include "attnres/study/study_schema.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <regex>

#include "attnres/study/study_recipe.h"
#include "attnres/support/config_schema.h"
#include "attnres/train/recipe/recipe.h"

namespace attnres {
namespace {

// Settings of several mechanisms may have one name, each its own limits.
void add_settings(Json& properties, const std::string& path, const ConfigKey& depth_mixing) {
  for (const ConfigVariant& variant : depth_mixing.variants) {
    for (const ConfigKey& setting : variant.keys) {
      Json& any_of = properties[path + "." + setting.name]["anyOf"];
      const Json schema = key_schema(setting);
      if (std::find(any_of.begin(), any_of.end(), schema) == any_of.end()) any_of.push_back(schema);
    }
  }
}

// The keys in an object of a recipe, which stands at `path` ("model.") and in the schema at
// `place`.
void add_recipe_keys(Json& schema, const std::vector<ConfigKey>& keys, const std::string& path,
                     const std::string& place) {
  for (const ConfigKey& key : keys) {
    const std::string full = path + key.name, at = fmt::format("{}/properties/{}", place, key.name);
    // What the grid itself says, and what it is a part of, a study does not set.
    const bool is_of_grid = overlap(full, "name") || overlap(full, "train.seed");
    if (!is_of_grid) schema["properties"][full] = {{"$ref", at}};
    if (key.type == KeyType::named_numbers) {
      const std::string names =
          std::regex_replace(fmt::format("^{}.", full), std::regex("\\."), "\\.") + "[^.]+$";
      schema["patternProperties"][names] = {{"$ref", at + "/additionalProperties"}};
    }
    if (key.variants.empty()) {
      add_recipe_keys(schema, key.keys, full + ".", at);
    } else {
      schema["properties"][full + ".type"] = key_schema(key.keys.front());
      add_settings(schema["properties"], full, key);
    }
  }
}

}  // namespace

Json study_schema() {
  Json recipe = recipe_schema();
  for (const char* key : {"$schema", "title"}) recipe.erase(key);
  Json recipe_keys_schema = Json::object();
  add_recipe_keys(recipe_keys_schema, recipe_keys(), "", "#/$defs/recipe");
  Json schema = file_schema("A study of attnres: docs/recipe.md", study_keys());
  schema["$defs"] = {{"recipe", recipe}, {"recipe_keys", recipe_keys_schema}};
  return schema;
}

}  // namespace attnres
