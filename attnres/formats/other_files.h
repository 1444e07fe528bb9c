// Files of models that are not read here.
#pragma once

#include <filesystem>
#include <string>

namespace attnres {

// What a folder without the files of a model directory holds instead, and what to do about it, as
// the end of an error: ": it holds pytorch_model.bin.index.json, ...". Empty where it holds nothing
// that is known.
std::string what_it_holds_instead(const std::filesystem::path& folder);

// The same of a file that is no GGUF file, by its name or how it begins: ": it is ...".
std::string what_a_file_is(const std::filesystem::path& file);

}  // namespace attnres
