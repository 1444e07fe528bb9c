#include "attnres/train/checkpoint.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "attnres/formats/model_config_json.h"
#include "attnres/formats/safetensors.h"
#include "attnres/pretrained/model_directory.h"
#include "attnres/support/config.h"
#include "attnres/support/file.h"
#include "attnres/support/hex.h"
#include "attnres/support/random.h"
#include "attnres/train/run_folder.h"

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
    v("peak_bytes", peak_bytes);
    v("metrics_bytes", metrics_bytes);
    v("probes_bytes", probes_bytes);
    v("samples_bytes", samples_bytes);
  }
};

std::string checksum_of(const Json& state) {
  return hex(hash_bytes(state.dump()));
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

// Throws Error unless the model that was loaded is the one that `config` describes.
void require_model(const fs::path& folder, const Transformer& loaded, const ModelConfig& config,
                   int64_t vocab_size) {
  const Transformer plan(config, vocab_size, /*seed=*/std::nullopt, at::kFloat, at::kMeta);
  for (const Parameter& p : plan.parameters().all()) {
    const Parameter* there = loaded.parameters().find(p.site, p.role);
    require(there != nullptr && there->tensor.sizes() == p.tensor.sizes(),
            "{}: {} of site {} does not have the shape that the recipe asks for", folder.string(),
            p.role, p.site);
  }
  // What has no shape, as the base of rotary positions. Compared as files have it: they leave out
  // settings without effect.
  const auto as_saved = [&](const ModelConfig& model) {
    return to_config_json({model, vocab_size, /*context=*/0, {}}, at::kFloat);
  };
  std::string list;
  for (const std::string& difference : differences(as_saved(loaded.config()), as_saved(config))) {
    list += "\n  " + difference;
  }
  require(list.empty(), "{}: its model is not the one that the recipe describes:{}",
          folder.string(), list);
}

}  // namespace

Training::Training(std::unique_ptr<Transformer> made, const TrainConfig& config)
    : model(std::move(made)), optimizer(*model, config) {}

void save_checkpoint(const fs::path& folder, const Training& training, const Tokenizer& tokenizer,
                     int64_t context) {
  write_folder(folder, [&](const fs::path& filling) {
    save_model(*training.model, filling, context, tokenizer.end_of_document());
    tokenizer.save(filling);
    write_safetensors(filling / kOptimizerFile, training.optimizer.state());
    write_state(filling, {training.state, training.optimizer.updates});
  });
}

TrainingState read_training_state(const fs::path& folder) {
  return read_state(folder);
}

Training load_checkpoint(const fs::path& folder, const ModelConfig& model, int64_t vocab_size,
                         const TrainConfig& config) {
  const StateFile state = read_state(folder);
  Training training(load_model(folder, precision_of(config)), config);
  require_model(folder, *training.model, model, std::max(vocab_size, training.model->vocab_size()));
  const SafetensorsFile moments(folder / kOptimizerFile);
  moments.verify_checksum();
  for (const auto& [name, moment] : training.optimizer.state()) {
    const TensorInfo& saved = moments.info(name);
    require(saved.shape == moment.sizes() && saved.dtype == moment.scalar_type(),
            "{}: {} has another shape or type than the parameter",
            (folder / kOptimizerFile).string(), name);
    moments.read_into(name, moment);
  }
  training.optimizer.updates = state.updates;
  training.state = state;
  return training;
}

}  // namespace attnres
