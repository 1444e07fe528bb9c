// JSON schemas as far as answers can be kept to them token by token.
#pragma once

#include <functional>
#include <string>

#include "attnres/support/json.h"

namespace attnres {

// The same schema with nothing in it but what XGrammar keeps to: what it passes over in silence is
// refused. Where an object has `properties`, others are left out unless `additionalProperties` is a
// schema. `check_part` is given each part that stands for itself and has bounds, to throw
// std::exception where there is no such value. Throws Error that names the place, as in
// "#/properties/age: ...".
Json answer_schema(const Json& schema, const std::function<void(const Json&)>& check_part);

}  // namespace attnres
