// The page at /: a prompt, its continuation, and which earlier layers every site reads.
#pragma once

#include <string_view>

namespace attnres {

// page.html beside this header.
std::string_view page();

}  // namespace attnres
