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
// A GGUF file of one of formats/gguf_layouts.h takes the place of a folder (formats/gguf_load.h),
// with the tokenizer in it. save_model.h writes folders. An adapter's folder (adapter.h) is the
// model that it says it is of, with what it adds.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "attnres/chat/chat_template.h"
#include "attnres/formats/model_config_json.h"
#include "attnres/formats/tensor_files.h"
#include "attnres/model/transformer.h"
#include "attnres/parameters/precision.h"
#include "attnres/text/tokenizer.h"

namespace attnres {

class Adapter;
class GgufFile;
class NamedWeights;
struct GgufConfig;

// Opened once: what it says, and the weights that are loaded, are those that lay there then.
class ModelDirectory {
 public:
  // Opens the folder or GGUF file, whose weights stay mapped while this lives. Throws Error on a
  // configuration that this program cannot run exactly, and on weights that are not there or whose
  // files' headers are damaged. find_model says where a run has its model.
  explicit ModelDirectory(const std::filesystem::path& path);
  // The same with what the adapter in this folder adds.
  ModelDirectory(const std::filesystem::path& path, const std::filesystem::path& adapter);
  ModelDirectory(ModelDirectory&&) noexcept;
  ModelDirectory& operator=(ModelDirectory&&) noexcept;
  ~ModelDirectory();

  const std::filesystem::path& path() const { return path_; }
  // Where the whole model lies: the same, or what an adapter adds to.
  const std::filesystem::path& base() const { return base_path_; }
  // Null where nothing is added.
  const Adapter* adapter() const { return adapter_.get(); }
  // The parameters of a model like this one, by site and role, that are not the whole model's
  // alone: those that were added to it, or that the adapter has.
  std::set<std::pair<int, std::string>> beyond_base(const Transformer& model) const;
  // By whose names, and in which form, an adapter's files have parameters.
  FileLayout adapter_layout() const;
  // The folder with a tokenizer's files: the adapter's if it has some.
  const std::filesystem::path& tokenizer_folder() const;
  // The file in the place of a folder, or null.
  const GgufFile* gguf() const { return gguf_.get(); }
  // A folder's weights, or null.
  const TensorFiles* files() const { return files_.get(); }
  const NamedWeights* weights() const { return weights_.get(); }
  // What lies there and is not read, for people: a sentence each, such as "DIR/model.safetensors:
  // 12 tensors of layers that predict further tokens are not read"; keys of config.json that look
  // misspelled; and ids of no token.
  std::vector<std::string> notes() const;

  // What config.json or the file's metadata say; the tokens that end a document are also those of
  // generation_config.json.
  const StoredConfig& stored() const { return stored_; }
  const ModelConfig& config() const { return stored_.model; }
  int64_t vocab_size() const { return stored_.vocab_size; }  // token embeddings
  int64_t context() const { return stored_.context; }        // max_position_embeddings

  // How the file stores each weight (gguf_weight_formats), or the folder those that it holds
  // quantized (packed_tensors.h); f32 of others.
  WeightFormats weight_formats() const;
  // The same, with bfloat16 and float16 weights as they are stored too.
  WeightFormats stored_formats() const;

  // Throws UnreadTokenizer as load_tokenizer and read_gguf_tokenizer do.
  std::unique_ptr<Tokenizer> tokenizer() const;
  // Null in the place of that error; then `why` says why.
  std::unique_ptr<Tokenizer> tokenizer_if_read(std::string* why = nullptr) const;
  // The model's token ids in the place of a tokenizer: with the files of one that is not read, and
  // the first of the tokens that end a document as its end (-1 where there is none).
  std::unique_ptr<Tokenizer> ids() const;
  // How the model was taught conversations (chat_template_files.h).
  ChatTemplate chat_template() const;

  // The tokens at which a text that the model writes ends: those that end a document, and the
  // tokenizer's end of one where there is a tokenizer. Each once, in order.
  std::vector<int64_t> ends(const Tokenizer* tokenizer) const;

  // The stage of the model that has these sites; weights stored in float32, bfloat16 or float16 are
  // converted to the parameters' dtype. Throws Error on missing, unknown or wrongly shaped tensors
  // of the whole model, before there is memory for any; then on a damaged file, and on numbers that
  // are not finite. Only files that hold a tensor of the stage are looked at for those two. Of a
  // process of a tensor group its parts, for which each tensor is read whole.
  std::unique_ptr<Transformer> load(const Precision& precision = {}, const SiteSet& sites = {},
                                    const TensorGroup* group = nullptr) const;
  // As a model of this configuration, which is config() with parameters added: those start as this
  // seed says. By one process.
  std::unique_ptr<Transformer> load_as(const ModelConfig& model, uint64_t seed,
                                       const Precision& precision = {},
                                       const SiteSet& sites = {}) const;

 private:
  struct Whole;
  std::unique_ptr<Transformer> load_files(const ModelConfig& config, const Precision& precision,
                                          const SiteSet& sites, const TensorGroup* group) const;
  void open_base();
  Transformer base_shapes() const;
  // Made where it is first asked for. Throws Error where the files are not of its size.
  const Transformer& whole() const;

  std::filesystem::path path_, base_path_;
  std::unique_ptr<const Adapter> adapter_;
  std::unique_ptr<const GgufFile> gguf_;
  std::unique_ptr<const GgufConfig> gguf_config_;
  ModelConfig files_model_;  // the whole model that the files have
  StoredConfig stored_;      // with what an adapter adds
  std::unique_ptr<const TensorFiles> files_;
  std::unique_ptr<const NamedWeights> weights_;
  std::unique_ptr<Whole> whole_;
};

// ModelDirectory::load of what lies there.
std::unique_ptr<Transformer> load_model(const std::filesystem::path& path,
                                        const Precision& precision = {}, const SiteSet& sites = {},
                                        const TensorGroup* group = nullptr);

}  // namespace attnres
