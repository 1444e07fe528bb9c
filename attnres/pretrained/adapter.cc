#include "attnres/pretrained/adapter.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "attnres/formats/config_keys.h"
#include "attnres/formats/stored_form.h"
#include "attnres/model/parameter_names.h"
#include "attnres/ops/packed_weight/packed_weight.h"
#include "attnres/pretrained/named_weights.h"
#include "attnres/support/config.h"
#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "attnres/support/format.h"

namespace attnres {
namespace fs = std::filesystem;
namespace {

constexpr const char* kAdapterFile = "adapter_config.json";
constexpr const char* kRecipeFile = "adapter_recipe.json";
constexpr const char* kPrefix = "base_model.model.";
constexpr std::string_view kLoraA = ".lora_A.weight";

// PEFT goes by the modules of transformers, which are called otherwise than in Kimi Linear's files.
struct ModuleName {
  std::string in_files, in_transformers;
};
const std::array<ModuleName, 3> kModuleNames = {
    {{".self_attn.f_", ".self_attn.forget_gate.f_"},
     {".block_sparse_moe.shared_experts.", ".mlp.shared_experts."},
     {".block_sparse_moe.gate.", ".mlp.gate."}}};

std::string replaced(std::string name, const std::string& what, const std::string& by) {
  const size_t at = name.find(what);
  return at == std::string::npos ? name : name.replace(at, what.size(), by);
}

// The name of a model's tensor as PEFT has it, but for what it puts before all.
std::string peft_name(FileLayout layout, std::string name) {
  name = name_in_layout(layout, std::move(name));
  if (layout == FileLayout::kimi_k3) name.insert(0, kNestedNames);
  if (layout != FileLayout::kimi_linear) return name;
  for (const auto& [in_files, in_transformers] : kModuleNames) {
    name = replaced(std::move(name), in_files, in_transformers);
  }
  return name;
}

std::string our_name(std::string name) {
  for (const std::string_view before :
       {std::string_view(kPrefix), std::string_view(kNestedNames)}) {
    if (name.starts_with(before)) name.erase(0, before.size());
  }
  for (const auto& [in_files, in_transformers] : kModuleNames) {
    name = replaced(std::move(name), in_transformers, in_files);
  }
  return name;
}

std::map<std::string, std::string> by_our_names(const TensorFiles& files) {
  std::map<std::string, std::string> names;
  for (const std::string& name : files.names()) {
    const auto [there, is_new] = names.emplace(our_name(name), name);
    require(is_new, "{}: {} and {} are one", files.what(), name, there->second);
  }
  return names;
}

void require_computed(const ConfigKeys& keys) {
  keys.only("peft_type", "LORA");
  keys.only("bias", "none");
  for (const char* key : {"use_dora", "fan_in_fan_out", "lora_bias"}) keys.only(key, false);
  for (const char* key : {"rank_pattern", "alpha_pattern"}) keys.only(key, Json::object());
  for (const char* key : {"target_parameters", "trainable_token_indices", "layer_replication"}) {
    require(keys.missing(key) || keys.at(key).empty(),
            "{}: {}: attnres has maps of low rank beside linear maps only", keys.what(), key);
  }
}

// Throws Error on kinds of adapters and settings that change what is computed.
void refuse_others(const ConfigKeys& keys) {
  try {
    require_computed(keys);
  } catch (const Error& e) {
    fail("{}; merge it into its model in PEFT (merge_and_unload)", e.what());
  }
}

// Exactly the maps that the files have one beside, whatever words the configuration has for them.
std::vector<std::string> adapted_modules(const std::map<std::string, std::string>& file_names) {
  std::vector<std::string> modules;
  for (const auto& [name, in_file] : file_names) {
    if (name.ends_with(kLoraA)) modules.push_back(name.substr(0, name.size() - kLoraA.size()));
  }
  return modules;
}

LoraSettings read_lora(const ConfigKeys& keys, const TensorFiles& files,
                       const std::map<std::string, std::string>& file_names) {
  const int64_t rank = keys.whole("r");
  require(rank > 0, "{}: r: expected 1 or more, got {}", keys.what(), rank);
  // Before there is memory for matrices of that rank.
  for (const auto& [name, in_file] : file_names) {
    if (!name.ends_with(kLoraA)) continue;
    const std::vector<int64_t>& shape = files.info(in_file).shape;
    require(shape.size() == 2 && shape[0] == rank,
            "{}: r is {}, but {} in {} has the shape [{}]; put the files of one adapter together",
            keys.what(), rank, one_line(in_file), files.what(), fmt::join(shape, ", "));
  }
  const double alpha = keys.number("lora_alpha", 8);
  const bool by_root = keys.flag("use_rslora", false);  // alpha / sqrt(r)
  return {.rank = rank,
          .alpha = by_root ? alpha * std::sqrt(static_cast<double>(rank)) : alpha,
          .targets = adapted_modules(file_names)};
}

// Last parts of their names, which PEFT's models have, or whole names where some maps of that name
// have none beside them.
Json target_modules(const Transformer& model, FileLayout layout) {
  std::set<std::string> modules, ends;
  for (const Parameter& p : model.parameters().all()) {
    if (!p.role.ends_with(kLowRankIn)) continue;
    const std::string name = peft_name(layout, hugging_face_name(p, model.sublayers()));
    const std::string module = name.substr(0, name.size() - kLoraA.size());
    modules.insert(module);
    ends.insert(module.substr(module.rfind('.') + 1));
  }
  const ModelConfig& config = model.config();
  const bool all = config.lora.targets == std::vector<std::string>{kAllLinear};
  if (all && !config.has_experts(config.layers - 1)) return ends;
  return all ? Json(modules) : Json(config.lora.targets);
}

// The modules of PEFT's that whole parameters are of.
Json modules_to_save(const std::vector<std::string>& names) {
  std::set<std::string> modules;
  for (const std::string& name : names) {
    const std::string module = name.substr(0, name.rfind('.'));
    modules.insert(module.substr(module.rfind('.') + 1));
  }
  return modules.empty() ? Json() : Json(modules);
}

}  // namespace

bool is_adapter_folder(const fs::path& folder) {
  return path_exists(folder / kAdapterFile) && has_tensor_files(folder, kAdapterWeights) &&
         !has_tensor_files(folder);
}

Adapter::Adapter(const fs::path& folder)
    : folder_(folder), files_(folder, kAdapterWeights), file_names_(by_our_names(files_)) {
  const fs::path path = folder / kAdapterFile;
  const Json json = read_json(path);
  const ConfigKeys keys(json, path.string());
  refuse_others(keys);
  if (!keys.missing("base_model_name_or_path")) model_ = keys.text("base_model_name_or_path");
  const fs::path recipe = folder / kRecipeFile;
  if (!path_exists(recipe)) {
    lora_ = read_lora(keys, files_, file_names_);
    return;
  }
  const Json own = read_json(recipe);
  const ConfigKeys model(own, recipe.string());
  read_config(model.at("lora"), recipe.string() + ": lora", lora_);
  depth_mixing_ = model.at("depth_mixing");
}

fs::path Adapter::model() const {
  require(!model_.empty(),
          "{}: does not say which model it is of; name it: --model PATH --adapter "
          "{}",
          (folder_ / kAdapterFile).string(), folder_.string());
  for (const fs::path& place : {fs::path(model_), folder_ / model_}) {
    if (path_exists(place)) return place;
  }
  fail("{}: it is of the model {}, which is not here; say where it lies: --model PATH --adapter {}",
       folder_.string(), one_line(model_), folder_.string());
}

ModelConfig Adapter::adapted(ModelConfig model) const {
  model.lora = lora_;
  if (depth_mixing_.is_null()) return model;
  try {
    model.depth_mixing = DepthMixing(depth_mixing_, model.mixer_shape());
  } catch (const Error& e) {
    fail("{}: {}", (folder_ / kRecipeFile).string(), e.what());
  }
  return model;
}

bool Adapter::has(const Parameter& parameter, int sublayers) const {
  return file_names_.contains(stored_tensors(parameter, sublayers).front().name);
}

void Adapter::fill(const Transformer& model, FileLayout layout) const {
  const at::NoGradGuard not_recording;
  std::set<std::string> known;
  for (const Parameter& parameter : model.parameters().all()) {
    if (!has(parameter, model.sublayers())) {
      require(!is_low_rank(parameter) || lora_.rank == 0, "{}: {} is missing", files_.what(),
              kPrefix + peft_name(layout, hugging_face_name(parameter, model.sublayers())));
      continue;
    }
    const StoredForm form = stored_form(layout, model.config(), parameter);
    const bool is_packed = parameter.packed.defined();
    const at::Tensor numbers =
        is_packed ? unpack_weight(parameter.packed) : parameter.tensor.detach();
    for (const StoredTensor& tensor : stored_tensors(parameter, model.sublayers())) {
      const auto found = file_names_.find(tensor.name);
      require(found != file_names_.end(), "{}: {} is missing", files_.what(), tensor.name);
      const std::string& name = found->second;
      known.insert(name);
      const TensorInfo& info = files_.info(name);
      require(info.shape == tensor.shape, "{}: {} has the shape [{}], expected [{}]", files_.what(),
              name, fmt::join(info.shape, ", "), fmt::join(tensor.shape, ", "));
      const at::Tensor place = tensor.view(numbers);
      files_.read_into(name, place);
      if (form.from_file) place.copy_(form.from_file(place));
    }
    if (is_packed) pack_weight(numbers, parameter.packed);
  }
  for (const std::string& name : files_.names()) {
    require(known.contains(name), "{}: {} is no tensor beside this model's", files_.what(),
            one_line(name));
  }
  files_.verify(files_.names());
}

void save_adapter(const Transformer& model, const fs::path& base, FileLayout layout,
                  const std::function<bool(const Parameter&)>& is_part, const fs::path& folder) {
  NamedTensors tensors;
  std::vector<std::string> whole;
  for (const Parameter& parameter : model.parameters().all()) {
    if (!is_part(parameter)) continue;
    const StoredForm form = stored_form(layout, model.config(), parameter);
    const at::Tensor own = parameter.tensor.detach();
    const at::Tensor values = form.to_file ? form.to_file(own) : own;
    for (const StoredTensor& tensor : stored_tensors(parameter, model.sublayers())) {
      const std::string name = peft_name(layout, tensor.name);
      tensors.emplace_back(kPrefix + name, tensor.view(values));
      if (!is_low_rank(parameter)) whole.push_back(name);
    }
  }
  write_tensor_files(folder, kAdapterWeights, tensors);
  const LoraSettings& lora = model.config().lora;
  const Json config = {
      {"peft_type", "LORA"},
      {"task_type", "CAUSAL_LM"},
      {"inference_mode", true},
      {"base_model_name_or_path", fs::weakly_canonical(base).string()},
      {"r", std::max<int64_t>(lora.rank, 1)},
      {"lora_alpha", lora.alpha},
      {"target_modules", lora.rank > 0 ? target_modules(model, layout) : Json::array()},
      {"modules_to_save", modules_to_save(whole)},
      {"lora_dropout", 0.0},
      {"bias", "none"}};
  const Json recipe = {{"lora", write_config(lora)},
                       {"depth_mixing", model.config().depth_mixing.to_json()}};
  write_file(folder / kRecipeFile, recipe.dump(2) + "\n");
  write_file(folder / kAdapterFile, config.dump(2) + "\n");
}

}  // namespace attnres
