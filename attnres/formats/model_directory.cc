#include "attnres/formats/model_directory.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <set>

#include "attnres/formats/model_config_json.h"
#include "attnres/formats/modeling_attnres.h"
#include "attnres/formats/safetensors.h"
#include "attnres/model/parameter_names.h"
#include "attnres/support/error.h"
#include "attnres/support/file.h"

namespace attnres {
namespace fs = std::filesystem;
namespace {

constexpr const char* kConfigFile = "config.json";
constexpr const char* kWeightsFile = "model.safetensors";

// As in the file: a pseudo-query is a linear map to one score, [1, d].
std::vector<int64_t> stored_shape(const Parameter& parameter) {
  std::vector<int64_t> shape = parameter.tensor.sizes().vec();
  if (parameter.kind == ParameterKind::pseudo_query) shape.insert(shape.begin(), 1);
  return shape;
}

StoredConfig read_stored_config(const fs::path& folder) {
  const fs::path path = folder / kConfigFile;
  require(fs::exists(path), "{}: not a model directory: it has no {}", folder.string(),
          kConfigFile);
  return from_config_json(read_json(path), path.string());
}

// Finishes or undoes an interrupted write of a run's checkpoint, unless a running training, which
// holds the run's lock, is writing it now.
void repair_checkpoint(const fs::path& checkpoint) {
  const fs::path run = checkpoint.parent_path().parent_path();
  try {
    const FolderLock lock(run);
    recover_folder(checkpoint);
  } catch (const Error&) {
    // In use, or read-only: what stands is used as it is.
  }
}

void check_tensor(const SafetensorsFile& file, const std::string& what, const std::string& name,
                  const std::vector<int64_t>& expected) {
  require(file.contains(name), "{}: the tensor {} is missing", what, name);
  const TensorInfo& info = file.info(name);
  require(info.shape == expected, "{}: {} has the shape [{}], expected [{}]", what, name,
          fmt::join(info.shape, ", "), fmt::join(expected, ", "));
  require(info.dtype == at::kFloat || info.dtype == at::kBFloat16 || info.dtype == at::kHalf,
          "{}: {} is stored as {}; weights are read as float32, bfloat16 or float16", what, name,
          c10::toString(info.dtype));
}

// Whether the file has what decides the size of a model, before one of that size is made.
void check_dimensions(const SafetensorsFile& file, const std::string& what,
                      const StoredConfig& stored) {
  const ModelConfig& model = stored.model;
  check_tensor(file, what, "model.embed_tokens.weight", {stored.vocab_size, model.width});
  for (int64_t layer = 0; layer < model.layers; ++layer) {
    check_tensor(file, what, fmt::format("model.layers.{}.mlp.down_proj.weight", layer),
                 {model.width, model.ffn_width});
  }
}

// A tied model's file may hold the head nevertheless; it then is the embedding.
void check_tied_head(const SafetensorsFile& file, const std::string& what,
                     const std::string& name) {
  require(at::equal(file.read(name), file.read("model.embed_tokens.weight")),
          "{}: {} differs from the token embedding, but tie_word_embeddings is true", what, name);
}

}  // namespace

fs::path find_model_directory(const fs::path& path) {
  const fs::path folder = fs::weakly_canonical(path);
  const bool is_checkpoint = folder.parent_path().filename() == "checkpoints";
  const bool is_run = fs::is_directory(folder / "checkpoints");
  if (is_checkpoint) repair_checkpoint(folder);
  if (is_run) {
    for (const char* name : {"best", "last"}) repair_checkpoint(folder / "checkpoints" / name);
  }

  require(fs::exists(folder), "{}: no such model directory", path.string());
  require(fs::is_directory(folder), "{}: is a file, expected a model directory", path.string());
  if (fs::exists(folder / kConfigFile)) return path;
  for (const char* name : {"best", "last"}) {
    const fs::path checkpoint = path / "checkpoints" / name;
    if (fs::exists(checkpoint / kConfigFile)) return checkpoint;
  }
  require(!is_run, "{}: this run has no checkpoint yet", path.string());
  fail("{}: not a model directory: it has neither {} nor checkpoints/best", path.string(),
       kConfigFile);
}

void save_model(const Transformer& model, const fs::path& folder, int64_t context,
                int64_t end_of_document, at::ScalarType dtype) {
  const StoredConfig stored = {model.config(), model.vocab_size(), context, end_of_document};
  const Json config = to_config_json(stored, dtype);
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const Parameter& parameter : model.parameters().all()) {
    tensors.emplace_back(hugging_face_name(parameter, model.sublayers()),
                         parameter.tensor.detach().to(dtype).view(stored_shape(parameter)));
  }
  write_safetensors(folder / kWeightsFile, tensors, {{"format", "pt"}});
  if (config.contains("auto_map")) write_file(folder / kModelingFile, modeling_attnres());
  write_file(folder / kConfigFile, config.dump(2) + "\n");
}

std::unique_ptr<Transformer> load_model(const fs::path& folder, at::ScalarType dtype) {
  const StoredConfig stored = read_stored_config(folder);
  const fs::path path = folder / kWeightsFile;
  require(fs::exists(path) || !fs::exists(folder / "pytorch_model.bin"),
          "{}: pytorch_model.bin is a pickle, which attnres does not read; save the model again "
          "with safe serialization, as {}",
          folder.string(), kWeightsFile);
  require(fs::exists(path), "{}: {} is missing", folder.string(), kWeightsFile);
  const SafetensorsFile file(path);
  const std::string what = path.string();
  check_dimensions(file, what, stored);

  auto model = std::make_unique<Transformer>(stored.model, stored.vocab_size, /*seed=*/0, dtype);
  std::set<std::string> unknown(file.names().begin(), file.names().end());
  for (const Parameter& parameter : model->parameters().all()) {
    const std::string name = hugging_face_name(parameter, model->sublayers());
    check_tensor(file, what, name, stored_shape(parameter));
    unknown.erase(name);
  }
  if (stored.model.tie_embeddings && unknown.erase("lm_head.weight") > 0) {
    check_tied_head(file, what, "lm_head.weight");
  }
  // Older files hold the frequencies of the rotary positions, which follow from rope_theta.
  std::erase_if(unknown, [](const auto& name) { return name.ends_with(".rotary_emb.inv_freq"); });
  require(unknown.empty(), "{}: {} is no tensor of this model", what,
          unknown.empty() ? "" : *unknown.begin());
  file.verify_checksum();

  const at::NoGradGuard no_grad;
  for (const Parameter& parameter : model->parameters().all()) {
    at::Tensor tensor = parameter.tensor;
    tensor.copy_(file.read(hugging_face_name(parameter, model->sublayers())).view_as(tensor));
  }
  return model;
}

int64_t model_context(const fs::path& folder) {
  return read_stored_config(folder).context;
}

}  // namespace attnres
