// "Did you mean": the known word nearest to what was typed.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace attnres {

// Levenshtein distance: single-character insertions, deletions and substitutions.
int edit_distance(std::string_view a, std::string_view b);

// The known word that is most likely meant; empty if known is empty. Names are made of parts
// (block_attn_res, train.steps): of one that was typed in part, whose beginning, whose initials or
// some of whose parts, in order, were typed, the distance is that of the part, and a little more,
// so that a whole name as near comes first.
std::string nearest(std::string_view word, const std::vector<std::string>& known);

// ": did you mean WORD?", the nearest known word where it may be meant: where at most a third of
// what was typed, or of the part of it that is near, is wrong. Empty where it is further off.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& known);

}  // namespace attnres
