#include "attnres/train/checkpoint.h"

#include <ATen/core/grad_mode.h>

#include <nlohmann/json.hpp>

#include "attnres/formats/safetensors.h"
#include "attnres/pretrained/model_directory.h"
#include "attnres/support/config.h"
#include "attnres/support/file.h"
#include "attnres/support/random.h"

namespace attnres {
namespace fs = std::filesystem;
namespace {

constexpr const char* kOptimizerFile = "optimizer.safetensors";
constexpr const char* kStateFile = "training_state.json";

struct StateFile : TrainingState {
  int64_t updates = 0;

  template <class V>
  void visit(V& v) {
    v("step", step);
    v("updates", updates);
    v("tokens", tokens);
    v("seconds", seconds);
    v("best_loss", best_loss);
    v("best_step", best_step);
    v("validation_loss", validation_loss);
    v("metrics_bytes", metrics_bytes);
    v("probes_bytes", probes_bytes);
    v("samples_bytes", samples_bytes);
  }
};

std::string checksum_of(const Json& state) {
  return fmt::format("{:016x}", hash_bytes(state.dump()));
}

void write_state(const fs::path& folder, const StateFile& state) {
  Json json = write_config(state);
  json["checksum"] = checksum_of(json);
  write_file(folder / kStateFile, json.dump(2) + "\n");
}

StateFile read_state(const fs::path& folder) {
  const fs::path path = folder / kStateFile;
  Json json = read_json(path);
  const Json checksum = json.is_object() ? json.value("checksum", Json()) : Json();
  if (json.is_object()) json.erase("checksum");
  require(checksum == checksum_of(json), "{}: damaged: its checksum does not match", path.string());
  StateFile state;
  read_config(json, path.string(), state);
  return state;
}

}  // namespace

void save_checkpoint(const fs::path& folder, const Transformer& model, const Tokenizer& tokenizer,
                     int64_t context, const Optimizer& optimizer, const TrainingState& state) {
  write_folder(folder, [&](const fs::path& filling) {
    save_model(model, filling, context, tokenizer.end_of_document());
    tokenizer.save(filling);
    write_safetensors(filling / kOptimizerFile, optimizer.state());
    write_state(filling, {state, optimizer.updates});
  });
}

TrainingState read_training_state(const fs::path& folder) {
  return read_state(folder);
}

TrainingState load_checkpoint(const fs::path& folder, Transformer& model, Optimizer& optimizer) {
  const at::NoGradGuard not_recording;
  const StateFile state = read_state(folder);
  const std::unique_ptr<Transformer> saved = load_model(folder);
  for (const Parameter& p : model.parameters().all()) {
    const Parameter* from = saved->parameters().find(p.site, p.role);
    require(from != nullptr && from->tensor.sizes() == p.tensor.sizes(),
            "{}: {} of site {} does not have the shape that the recipe asks for", folder.string(),
            p.role, p.site);
    p.tensor.copy_(from->tensor);
  }
  const SafetensorsFile moments(folder / kOptimizerFile);
  moments.verify_checksum();
  for (const auto& [name, moment] : optimizer.state()) {
    const at::Tensor saved_moment = moments.read(name);
    require(saved_moment.sizes() == moment.sizes() &&
                saved_moment.scalar_type() == moment.scalar_type(),
            "{}: {} has another shape or type than the parameter",
            (folder / kOptimizerFile).string(), name);
    moment.copy_(saved_moment);
  }
  optimizer.updates = state.updates;
  return state;
}

}  // namespace attnres
