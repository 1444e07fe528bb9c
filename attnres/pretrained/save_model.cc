#include "attnres/pretrained/save_model.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "attnres/formats/modeling_attnres.h"
#include "attnres/formats/stored_form.h"
#include "attnres/model/parameter_names.h"
#include "attnres/pretrained/directory_files.h"
#include "attnres/pretrained/named_weights.h"
#include "attnres/support/error.h"
#include "attnres/support/file.h"

namespace attnres {
namespace fs = std::filesystem;
namespace {

constexpr const char* kOutputScore = "model.output_attn_res_proj.weight";
// K3's first attention has nothing to choose from; its files have these two all the same.
constexpr const char* kUnusedScore = "model.layers.0.self_attention_res_proj.weight";
constexpr const char* kUnusedNorm = "model.layers.0.self_attention_res_norm.weight";

// What this layout holds beside the model's parameters, or in another shape.
NamedTensors in_layout(FileLayout layout, NamedTensors tensors) {
  if (layout == FileLayout::kimi_linear) {
    for (auto& [name, tensor] : tensors) {
      if (name.ends_with(".A_log")) tensor = tensor.view({1, 1, -1, 1});
    }
  }
  for (auto& [name, tensor] : tensors) name = name_in_layout(layout, std::move(name));
  if (layout != FileLayout::kimi_k3) return tensors;
  const auto is_score = [](const auto& entry) { return entry.first == kOutputScore; };
  if (const auto score = std::find_if(tensors.begin(), tensors.end(), is_score);
      score != tensors.end()) {
    const at::Tensor like = score->second;
    tensors.emplace_back(kUnusedScore, at::zeros_like(like));
    tensors.emplace_back(kUnusedNorm, at::ones_like(like).flatten());
  }
  for (auto& [name, tensor] : tensors) name.insert(0, kNestedNames);
  return tensors;
}

// Puts what the model directory `like` has there in the place of tensors that no parameter is.
void keep_unused(const ModelDirectory& like, at::ScalarType dtype, NamedTensors& tensors) {
  if (like.weights() == nullptr || like.stored().layout != FileLayout::kimi_k3) return;
  const NamedWeights& weights = *like.weights();
  for (auto& [name, tensor] : tensors) {
    for (const char* unused : {kUnusedScore, kUnusedNorm}) {
      if (name != std::string(kNestedNames) + unused || !weights.contains(unused)) continue;
      const at::Tensor kept = weights.read(unused);
      if (kept.numel() == tensor.numel()) tensor = kept.view(tensor.sizes()).to(dtype);
    }
  }
}

// Throws where the layout has no such model.
Json config_json(const Transformer& model, int64_t context, const DocumentIds& document_ids,
                 at::ScalarType dtype, std::optional<FileLayout> layout) {
  require(model.config().lora.rank == 0,
          "save_model: a model with maps of low rank is saved as an adapter (save_adapter), or "
          "after merge_low_rank");
  return to_config_json({model.config(), model.vocab_size(), context, document_ids,
                         layout.value_or(layout_of(model.config()))},
                        dtype);
}

void write_config_json(const fs::path& folder, const Json& config) {
  if (config.contains("auto_map")) write_file(folder / kModelingFile, modeling_attnres());
  write_file(folder / kConfigFile, config.dump(2) + "\n");
}

}  // namespace

DocumentIds StoredGeneration::ids_with(const Tokenizer& tokenizer) const {
  return document_ids.end.is_null() ? DocumentIds(tokenizer.end_of_document()) : document_ids;
}

StoredGeneration stored_generation(const ModelDirectory& directory) {
  StoredGeneration generation{directory.stored().document_ids};
  const fs::path file = directory.base() / kGenerationFile;
  if (directory.gguf() == nullptr && path_exists(file)) generation.config_json = read_file(file);
  return generation;
}

void save_generation(const StoredGeneration& generation, const fs::path& folder) {
  if (generation.config_json.empty()) return;
  write_file(folder / kGenerationFile, generation.config_json);
}

NamedTensors model_tensors(const Transformer& stage, at::ScalarType dtype,
                           std::optional<FileLayout> layout,
                           const std::function<at::Tensor(const Parameter&)>& numbers) {
  const FileLayout of_files = layout.value_or(layout_of(stage.config()));
  NamedTensors tensors;
  for (const Parameter& held : stage.parameters().all()) {
    Parameter parameter = held;
    if (numbers) parameter.tensor = numbers(held);
    if (!parameter.tensor.defined()) continue;
    // A router's bias decides which experts are chosen: no file rounds it.
    const bool is_exact = parameter.kind == ParameterKind::router_bias && dtype != at::kDouble;
    const StoredForm form = stored_form(of_files, stage.config(), parameter);
    const at::Tensor own = parameter.tensor.detach();
    const at::Tensor values =
        (form.to_file ? form.to_file(own) : own).to(is_exact ? at::kFloat : dtype);
    for (const StoredTensor& stored_tensor : stored_tensors(parameter, stage.sublayers())) {
      tensors.emplace_back(stored_tensor.name, stored_tensor.view(values));
    }
  }
  return in_layout(of_files, std::move(tensors));
}

void save_model_config(const Transformer& stage, const fs::path& folder, int64_t context,
                       const DocumentIds& document_ids, at::ScalarType dtype,
                       std::optional<FileLayout> layout) {
  write_config_json(folder, config_json(stage, context, document_ids, dtype, layout));
}

void save_model(const Transformer& model, const fs::path& folder, int64_t context,
                const DocumentIds& document_ids, at::ScalarType dtype,
                std::optional<FileLayout> layout) {
  const Json config = config_json(model, context, document_ids, dtype, layout);
  write_tensor_files(folder, kWeights, model_tensors(model, dtype, layout));
  write_config_json(folder, config);
}

void save_model_folder(const fs::path& folder, const Transformer& model, const Tokenizer& tokenizer,
                       int64_t context, const StoredGeneration& generation) {
  write_folder(folder, [&](const fs::path& filling) {
    save_model(model, filling, context, generation.ids_with(tokenizer));
    save_generation(generation, filling);
    tokenizer.save(filling);
  });
}

void save_model_folder_like(const fs::path& folder, const Transformer& model,
                            const ModelDirectory& like, int64_t context, at::ScalarType dtype,
                            std::optional<FileLayout> layout) {
  write_folder(folder, [&](const fs::path& filling) {
    const StoredGeneration generation = stored_generation(like);
    const Json config = config_json(model, context, generation.document_ids, dtype, layout);
    NamedTensors tensors = model_tensors(model, dtype, layout);
    keep_unused(like, dtype, tensors);
    write_tensor_files(filling, kWeights, tensors);
    write_config_json(filling, config);
    save_generation(generation, filling);
    if (like.gguf() != nullptr) {
      // Token ids need none.
      if (const auto tokenizer = like.tokenizer_if_read()) tokenizer->save(filling);
      return;
    }
    for (const fs::path& file : tokenizer_files(like.tokenizer_folder())) {
      write_file(filling / file.filename(), read_file(file));
    }
  });
}

}  // namespace attnres
