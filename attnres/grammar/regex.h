// Regular expressions as grammars. XGrammar's own readers of them take some for others, and pass
// over what they do not know.
//
// Taken is what Python and JavaScript have in common: ( ) (?: ) (?<name> ) | * + ? {2,5} and their
// lazy forms, classes, . which is all but a line feed, \d \w \s of ASCII, and escapes of
// characters.
#pragma once

#include <string>
#include <string_view>

namespace attnres {

// A grammar whose rule "root" makes the texts that an expression matches as a whole. Throws Error
// that names the position, counted in characters from 1.
std::string regex_grammar(std::string_view expression);

// The same of JSON strings, without their quotes, whose texts it matches: XGrammar as it is built
// here takes it for `pattern` of a schema (cmake/xgrammar). Classes that have other characters too
// have no quotes, backslashes and control characters, which would be escaped.
std::string json_pattern(std::string_view expression);

}  // namespace attnres
