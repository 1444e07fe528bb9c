// Where a model lies that somebody names.
#pragma once

#include <filesystem>

namespace attnres {

// The path itself if it is a GGUF file or a folder that holds a model, or `checkpoints/best` of a
// run's folder (before the first evaluation, `checkpoints/last`); a checkpoint whose writing was
// interrupted is repaired first. Throws Error saying what is missing.
std::filesystem::path find_model(const std::filesystem::path& path);

}  // namespace attnres
