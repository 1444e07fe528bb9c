// Adapters: what training adds to a model, or moves of it, without the model itself. A folder that
// PEFT reads and writes:
//
//   adapter_config.json        rank, alpha and targets of maps of low rank (layers/low_rank_map.h),
//                              and where the model lies
//   adapter_model.safetensors  matrices A and B, and whole parameters that were trained beside
//                              them, with "base_model.model." before their names
//   adapter_recipe.json        only of attnres: model.lora as a recipe has it, and
//                              model.depth_mixing, for which the model was perhaps retrofitted
//
// Files of a tokenizer may lie beside them.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "attnres/formats/architectures.h"
#include "attnres/formats/tensor_files.h"
#include "attnres/model/transformer.h"

namespace attnres {

inline constexpr const char* kAdapterWeights = "adapter_model";

bool is_adapter_folder(const std::filesystem::path& folder);

class Adapter {
 public:
  // Throws Error on what is missing or damaged, and by name on what PEFT has and this program does
  // not compute.
  explicit Adapter(const std::filesystem::path& folder);

  const std::filesystem::path& folder() const { return folder_; }
  // The model's place as it is said, relative to the working directory or to the folder.
  std::filesystem::path model() const;
  // The model's configuration with what is added. Throws Error where they do not fit.
  ModelConfig adapted(ModelConfig model) const;
  const TensorFiles& files() const { return files_; }

  // Whether the whole of a parameter is in the files.
  bool has(const Parameter& parameter, int sublayers) const;
  // Fills the parameters that are there, of a model of the adapted configuration, whose own files
  // have this layout. Throws Error on tensors of no parameter, of another shape, or damaged, and
  // where a map of low rank is missing.
  void fill(const Transformer& model, FileLayout layout) const;

 private:
  std::filesystem::path folder_;
  TensorFiles files_;
  std::map<std::string, std::string> file_names_;  // of tensors, by our names
  std::string model_;
  LoraSettings lora_;
  Json depth_mixing_;  // null: the model's own
};

// Writes an adapter of the model that lies at `base`, whose files have this layout, into an
// existing folder: those parameters that `is_part` says. Not atomic as a whole.
void save_adapter(const Transformer& model, const std::filesystem::path& base, FileLayout layout,
                  const std::function<bool(const Parameter&)>& is_part,
                  const std::filesystem::path& folder);

}  // namespace attnres
