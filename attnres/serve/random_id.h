// Names that nobody guesses: of answers and of calls.
#pragma once

#include <string>

namespace attnres {

// The prefix and 128 random bits in hexadecimal.
std::string random_id(const std::string& prefix);

}  // namespace attnres
