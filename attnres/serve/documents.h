// What the server gives as it is, carried in the program.
#pragma once

#include <string_view>

namespace attnres {

// page.html beside this header: a prompt, its continuation, and which earlier layers every site
// reads.
std::string_view page();
// openapi.json beside this header: the server's endpoints, for programs.
std::string_view openapi();

}  // namespace attnres
