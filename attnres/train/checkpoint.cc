#include "attnres/train/checkpoint.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "attnres/formats/model_config_json.h"
#include "attnres/formats/tensor_files.h"
#include "attnres/pretrained/model_directory.h"
#include "attnres/support/config.h"
#include "attnres/support/file.h"
#include "attnres/support/hex.h"
#include "attnres/support/random.h"
#include "attnres/train/run_folder.h"
#include "attnres/train/sharded_folder.h"

namespace attnres {
namespace fs = std::filesystem;
namespace {

constexpr const char* kMoments = "optimizer";
constexpr const char* kStateFile = "training_state.json";

struct StateFile : TrainingState {
  int64_t updates = 0;
  // Of what was saved with it; empty in checkpoints of earlier versions.
  std::string model_checksum, optimizer_checksum;

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
    v("model_checksum", model_checksum);
    v("optimizer_checksum", optimizer_checksum);
  }
};

std::string checksum_of(const Json& state) {
  return hex(hash_bytes(state.dump()));
}

// Beside the files of the model and of the moments.
void write_state(const fs::path& folder, const Training& training) {
  const StateFile state = {training.state, training.optimizer.updates,
                           TensorFiles(folder, kWeights).checksum(),
                           TensorFiles(folder, kMoments).checksum()};
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

// Throws Error where the files are of another checkpoint than the state.
void require_saved_together(const TensorFiles& files, const std::string& checksum) {
  require(checksum.empty() || files.checksum() == checksum,
          "{}: is of another checkpoint than the {} beside it; put the files of one checkpoint "
          "together",
          files.what(), kStateFile);
}

// The model and what belongs to it, written by rank 0 beside the shards.
void write_model_rest(const fs::path& folder, const Transformer& model, const Tokenizer& tokenizer,
                      int64_t context) {
  save_model_config(model, folder, context, tokenizer.end_of_document());
  tokenizer.save(folder);
}

// Throws Error unless the model that was loaded, or the part of it, is of the one that `config`
// describes.
void require_model(const fs::path& folder, const Transformer& loaded, const ModelConfig& config,
                   int64_t vocab_size) {
  const Transformer plan(config, vocab_size, /*seed=*/std::nullopt, at::kFloat, at::kMeta,
                         loaded.sites());
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

Training::Training(std::unique_ptr<Transformer> made, const TrainConfig& config,
                   std::vector<double> factors)
    : model(std::move(made)), optimizer(model->parameters(), config, std::move(factors)) {}

void save_checkpoint(const fs::path& folder, const Training& training, const Tokenizer& tokenizer,
                     int64_t context) {
  write_folder(folder, [&](const fs::path& filling) {
    write_tensor_files(filling, kWeights, model_tensors(*training.model));
    write_tensor_files(filling, kMoments, training.optimizer.state(), Numbers::any);
    write_model_rest(filling, *training.model, tokenizer, context);
    write_state(filling, training);
  });
}

void save_checkpoint(const fs::path& folder, const Training& part, const Tokenizer* tokenizer,
                     int64_t context, Communicator& world) {
  const std::vector<HeldTensors> held = {{kWeights, model_tensors(*part.model)},
                                         {kMoments, part.optimizer.state(), Numbers::any}};
  const auto write_rest = [&](const fs::path& filling) {
    write_model_rest(filling, *part.model, *tokenizer, context);
    write_state(filling, part);
  };
  write_sharded_folder(folder, held, write_rest, world);
}

void save_model_folder(const fs::path& folder, const Transformer& part, const Tokenizer* tokenizer,
                       int64_t context, Communicator& world) {
  const auto write_rest = [&](const fs::path& filling) {
    write_model_rest(filling, part, *tokenizer, context);
  };
  write_sharded_folder(folder, {{kWeights, model_tensors(part)}}, write_rest, world);
}

TrainingState read_training_state(const fs::path& folder) {
  return read_state(folder);
}

Training load_checkpoint(const fs::path& folder, const ModelConfig& model, int64_t vocab_size,
                         const TrainConfig& config, const SiteSet& sites,
                         std::vector<double> factors) {
  const StateFile state = read_state(folder);
  require_saved_together(TensorFiles(folder, kWeights), state.model_checksum);
  auto loaded = load_model(folder, precision_of(config), sites);
  require_model(folder, *loaded, model, vocab_size);
  Training training = factors.empty() ? Training(std::move(loaded), config)
                                      : Training(std::move(loaded), config, std::move(factors));
  const TensorFiles moments(folder, kMoments);
  require_saved_together(moments, state.optimizer_checksum);
  std::vector<std::string> names;
  for (const auto& [name, moment] : training.optimizer.state()) {
    const TensorInfo& saved = moments.info(name);
    require(saved.shape == moment.sizes() && saved.dtype == moment.scalar_type(),
            "{}: {} has another shape or type than the parameter", moments.what(), name);
    names.push_back(name);
  }
  moments.verify(names, Numbers::any);
  for (const auto& [name, moment] : training.optimizer.state()) moments.read_into(name, moment);
  training.optimizer.updates = state.updates;
  training.state = state;
  return training;
}

}  // namespace attnres
