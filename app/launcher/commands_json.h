// What `attnres help --json` printed when the program was built.
#pragma once

#include <string_view>

namespace attnres {

// Empty in a program that was built for another machine.
std::string_view commands_json();

}  // namespace attnres
