// The schema (JSON Schema, draft 2020-12) of a configuration, made of what its definitions say of
// its keys: by it editors complete and check files.
#pragma once

#include <string>
#include <vector>

#include "attnres/support/config_key.h"
#include "attnres/support/json.h"

namespace attnres {

inline constexpr const char* kSchemaDialect = "https://json-schema.org/draft/2020-12/schema";

// Of a file whose outermost object has these keys, and may have "$schema".
Json file_schema(const std::string& title, const std::vector<ConfigKey>& keys);

// Of a value of one key. What a study says in recipe keys refers to "#/$defs/recipe_keys" and
// "#/$defs/recipe".
Json key_schema(const ConfigKey& key);

// Of an object with these keys.
Json object_schema(const std::vector<ConfigKey>& keys);

}  // namespace attnres
