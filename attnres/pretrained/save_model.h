// Writing a model directory (model_directory.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "attnres/formats/architectures.h"
#include "attnres/formats/model_config_json.h"
#include "attnres/formats/tensor_files.h"
#include "attnres/model/transformer.h"
#include "attnres/pretrained/model_directory.h"
#include "attnres/text/tokenizer.h"

namespace attnres {

// Where a model's texts begin and end, and how they are sampled, as its folder says it.
struct StoredGeneration {
  DocumentIds document_ids;
  std::string config_json = {};  // the text of generation_config.json; empty where there is none

  // The tokenizer's end of a document where nothing says it.
  DocumentIds ids_with(const Tokenizer& tokenizer) const;
};
// A GGUF file has its ids alone.
StoredGeneration stored_generation(const ModelDirectory& directory);
// Writes generation_config.json, where there is one, into an existing folder.
void save_generation(const StoredGeneration& generation, const std::filesystem::path& folder);

// Writes config.json and the weights into an existing folder, in layout_of the model's layout or
// another one that has it. `context` is the number of tokens that the model was trained on at once.
// Throws Error on numbers that are not finite as
// `dtype`. Not atomic as a whole.
void save_model(const Transformer& model, const std::filesystem::path& folder, int64_t context,
                const DocumentIds& document_ids, at::ScalarType dtype = at::kFloat,
                std::optional<FileLayout> layout = {});

// The two halves of that, for processes that each hold a stage of the model: the tensors of files
// (formats/tensor_files.h) in which the parameters of these sites lie, which share the parameters'
// memory but where a layout or `dtype` has them in another form; and config.json.
// `numbers`, where there is one, gives those of a whole parameter of which this process has a part,
// or nothing where another process writes it.
NamedTensors model_tensors(const Transformer& stage, at::ScalarType dtype = at::kFloat,
                           std::optional<FileLayout> layout = {},
                           const std::function<at::Tensor(const Parameter&)>& numbers = {});
void save_model_config(const Transformer& stage, const std::filesystem::path& folder,
                       int64_t context, const DocumentIds& document_ids,
                       at::ScalarType dtype = at::kFloat, std::optional<FileLayout> layout = {});

// save_model with a tokenizer's files and generation_config.json, replacing the folder in one step:
// a process killed at any moment leaves the old or the new one. Throws Error when the disk is full;
// then the old one stands.
void save_model_folder(const std::filesystem::path& folder, const Transformer& model,
                       const Tokenizer& tokenizer, int64_t context,
                       const StoredGeneration& generation = {});
// With the tokenizer of the model directory `like`: its files as they are, whatever their kind, its
// generation_config.json, and what it says of the begin and the end of documents. Where `like` is a
// GGUF file, the files of the tokenizer in it; none when that is not read.
void save_model_folder_like(const std::filesystem::path& folder, const Transformer& model,
                            const ModelDirectory& like, int64_t context,
                            at::ScalarType dtype = at::kFloat,
                            std::optional<FileLayout> layout = {});

}  // namespace attnres
