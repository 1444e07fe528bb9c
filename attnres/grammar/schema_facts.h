// What can be told of JSON schemas without a value.
#pragma once

#include <set>
#include <string>

#include "attnres/support/json.h"

namespace attnres {

// The part of a schema at a place, as in "#/$defs/name"; null where there is none.
const Json* schema_at(const Json& root, const std::string& place);

// Whether a value is of one of JSON schema's types.
bool is_of_type(const Json& value, const std::string& type);

// Whether a value meets one of these schemas at most: they have no type in common, or are of
// objects that tell by a property.
bool exclude_each_other(const Json& schemas, const Json& root);

// Whether some value of finite size meets it, as far as its references tell.
bool has_finite_value(const Json& root);

}  // namespace attnres
