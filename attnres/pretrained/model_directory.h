// A model as a folder in Hugging Face's layout: config.json and model.safetensors, or shards of it
// (formats/tensor_files.h).
//
// Where Llama or one of its family (formats/llama_family.h), Kimi Linear or Kimi K3 is the same
// architecture the folder is one of theirs, which transformers, mlx-lm and everything else that
// reads their files can load (model_config_json.h).
// Otherwise it is `model_type: attnres`, and config.json has an object `attnres` with the keys of a
// recipe's `model`; modeling_attnres.py beside it lets transformers load the folder. Tensors have
// Hugging Face's names (model/parameter_names.h); a tied head is not stored.
//
// What reads a model takes a GGUF file of one of formats/gguf_layouts.h in the place of a folder
// (formats/gguf_load.h), with the tokenizer in it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "attnres/formats/architectures.h"
#include "attnres/formats/model_config_json.h"
#include "attnres/formats/tensor_files.h"
#include "attnres/model/transformer.h"
#include "attnres/support/weight_format.h"
#include "attnres/text/tokenizer.h"

namespace attnres {

// The path itself if it is a GGUF file or a folder that holds a model, or `checkpoints/best` of a
// run's folder (before the first evaluation, `checkpoints/last`); a checkpoint whose writing was
// interrupted is repaired first. Throws Error saying what is missing.
std::filesystem::path find_model_directory(const std::filesystem::path& path);

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

// save_model with a tokenizer's files, replacing the folder in one step: a process killed at any
// moment leaves the old or the new one. Throws Error when the disk is full; then the old one
// stands.
void save_model_folder(const std::filesystem::path& folder, const Transformer& model,
                       const Tokenizer& tokenizer, int64_t context,
                       at::ScalarType dtype = at::kFloat);
// With the tokenizer of the model directory `like`: its files as they are, whatever their kind, and
// what it says of the begin and the end of documents. Where `like` is a GGUF file, the files of the
// tokenizer in it; none when that is not read.
void save_model_folder_like(const std::filesystem::path& folder, const Transformer& model,
                            const std::filesystem::path& like, int64_t context,
                            at::ScalarType dtype = at::kFloat,
                            std::optional<FileLayout> layout = {});

// Reads a folder of either kind, or of its model the stage that has these sites; weights stored in
// float32, bfloat16 or float16 are converted to the parameters' dtype. Throws Error on a
// configuration that this program cannot run exactly and on missing, unknown or wrongly shaped
// tensors of the whole model, before there is memory for any; then on a damaged file, and on
// numbers that are not finite. Only files that hold a tensor of the stage are looked at for those
// two. Of a process of a tensor group its parts, for which each tensor is read whole.
std::unique_ptr<Transformer> load_model(const std::filesystem::path& folder,
                                        Precision precision = {}, const SiteSet& sites = {},
                                        const TensorGroup* group = nullptr);

// How weights are stored where a GGUF file stores them so (gguf_weight_format); f32 of a folder.
WeightFormat model_weight_format(const std::filesystem::path& model);

// Throws UnreadTokenizer as load_tokenizer and read_gguf_tokenizer do.
std::unique_ptr<Tokenizer> model_tokenizer(const std::filesystem::path& model);

// The model's token ids in the place of a tokenizer: with the files of one that is not read, and
// the first of model_document_ids as the end of a document (-1 where there is none).
std::unique_ptr<Tokenizer> model_ids(const std::filesystem::path& model);

// What config.json says of the model, without reading its weights, and its number of token
// embeddings. Throw Error as load_model.
int64_t model_vocab_size(const std::filesystem::path& folder);
ModelConfig model_config(const std::filesystem::path& folder);

// Of config.json, with the tokens that end a document in generation_config.json.
DocumentIds model_document_ids(const std::filesystem::path& folder);

// The tokens at which a text that the model writes ends: those, and the tokenizer's end of a
// document where there is a tokenizer. Each once.
std::vector<int64_t> model_ends(const std::filesystem::path& folder, const Tokenizer* tokenizer);

// max_position_embeddings. Throws Error when the folder does not say.
int64_t model_context(const std::filesystem::path& folder);

}  // namespace attnres
