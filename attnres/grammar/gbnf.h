// Grammars as llama.cpp has them (GBNF), for XGrammar, whose own form looks the same and differs.
#pragma once

#include <string>
#include <string_view>

namespace attnres {

// The same grammar as XGrammar reads it. Throws Error, with the line, on what is no grammar, and on
// what makes no answer, or more than a matcher follows: rules that begin with themselves, or whose
// texts never end.
std::string gbnf_grammar(std::string_view text);

}  // namespace attnres
