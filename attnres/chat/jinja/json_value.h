// JSON as values of a template.
#pragma once

#include "attnres/chat/jinja/value.h"
#include "attnres/support/json.h"

namespace attnres::jinja {

// With every text and key of it as written or not. A whole number beyond 63 bits is a float. Throws
// Error on what is nested too deeply.
Value value_of(const Json& json, bool written);

}  // namespace attnres::jinja
