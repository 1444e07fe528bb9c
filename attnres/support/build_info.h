// What this program was built from.
#pragma once

#include <string>

#include "attnres/support/json.h"

namespace attnres {

std::string program_version();   // "0.1.0"
std::string compiler_version();  // "GCC 12.2.0"
std::string torch_version();     // "2.11.0", of the headers compiled against
// All of these, with the keys "version", "compiler" and "torch".
Json describe_build();

}  // namespace attnres
