// A model as a folder in Hugging Face's layout: config.json and model.safetensors.
//
// With plain residual connections the folder is a Llama one (`model_type: llama`), which
// transformers and everything that reads its files can load. Otherwise it is
// `model_type: attnres`, and config.json has an object `attnres` with the keys of a recipe's
// `model`; modeling_attnres.py beside it lets transformers load the folder. Tensors have Hugging
// Face's names (model/parameter_names.h); pseudo-queries are stored as [1, d], as Kimi K3 does; a
// tied head is not stored.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>

#include "attnres/model/transformer.h"

namespace attnres {

// The folder itself if it holds a model, or `checkpoints/best` of a run's folder (before
// the first evaluation, `checkpoints/last`); a checkpoint whose writing was interrupted is repaired
// first. Throws Error saying what is missing.
std::filesystem::path find_model_directory(const std::filesystem::path& path);

// Writes config.json and model.safetensors into an existing folder. `context` is the number of
// tokens that the model was trained on at once. Not atomic as a whole: see write_folder.
void save_model(const Transformer& model, const std::filesystem::path& folder, int64_t context,
                int64_t end_of_document, at::ScalarType dtype = at::kFloat);

// Reads a folder of either kind; weights stored in float32, bfloat16 or float16 are converted to
// `dtype`. Throws Error, before any large allocation, on a configuration that this program cannot
// run exactly, on missing, unknown or wrongly shaped tensors, and on a damaged file.
std::unique_ptr<Transformer> load_model(const std::filesystem::path& folder,
                                        at::ScalarType dtype = at::kFloat);

// max_position_embeddings. Throws Error when the folder does not say.
int64_t model_context(const std::filesystem::path& folder);

}  // namespace attnres
