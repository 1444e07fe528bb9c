// Regular expressions in the Ruby syntax of Oniguruma, which tokenizer.json files have.
#pragma once

#include <string>
#include <string_view>

namespace attnres {

// The same expression in PCRE2's syntax: \s, \d and \w as Unicode properties, scripts without
// their extensions, && in classes, and what follows {n,m}. Throws UnreadTokenizer naming `pattern`
// and the part of it that is not read.
std::string pcre2_pattern(std::string_view pattern);

}  // namespace attnres
