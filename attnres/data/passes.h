// How much of a text a run reads, for people.
#pragma once

#include <string>
#include <string_view>

namespace attnres {

// "3.1 passes over it", "42 passes over it", "5.6 % of it", where `text` is "it".
std::string format_passes(double ratio, std::string_view text);

}  // namespace attnres
