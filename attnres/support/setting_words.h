// What others call settings: the words of other programs and of papers for those of a recipe.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace attnres {

// Our words for a setting that others call so, the likeliest first ("lr": learning_rate). Capitals
// and hyphens make no difference. Empty where the word is none of theirs.
const std::vector<std::string>& words_for_setting(std::string_view word);

// The known setting that is meant by a word: itself, one that others call so, or the nearest one.
std::string nearest_setting(const std::string& word, const std::vector<std::string>& known);

}  // namespace attnres
