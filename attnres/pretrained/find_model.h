// Where a model lies that somebody names.
#pragma once

#include <filesystem>

namespace attnres {

// The path itself if it is a GGUF file or a folder that holds a model; of a folder with one GGUF
// model, split or not, and no other weights its file; the folder of an adapter; or
// `checkpoints/best` of a run's folder (before the first evaluation, `checkpoints/last`). A
// checkpoint whose writing was interrupted is repaired first. Throws Error saying what is missing,
// and where a folder has several GGUF models.
std::filesystem::path find_model(const std::filesystem::path& path);

}  // namespace attnres
