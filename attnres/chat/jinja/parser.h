// A template's text as what it says.
#pragma once

#include <string_view>

#include "attnres/chat/jinja/syntax.h"

namespace attnres::jinja {

// Jinja without what joins several templates (include, import, extends, block) and without
// recursive loops; with break, continue and the `generation` of transformers. Throws Error naming
// the line.
Statements parse(std::string_view source);

}  // namespace attnres::jinja
