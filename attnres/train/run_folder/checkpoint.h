// Checkpoints: a model directory plus what a run needs to go on exactly where it was.
//
//   config.json, model.safetensors, tokenizer files   the model, see pretrained/model_directory.h;
//                                                     what that which it began with said of texts
//                                                     (generation_config.json) too. Or, in the
//                                                     place of the first two, an adapter
//                                                     (pretrained/adapter.h) of that model
//   optimizer.safetensors                             the optimizer's moments
//   training_state.json                               TrainingState, with a checksum
//
// Several processes write both .safetensors in shards (formats/tensor_files.h), each a part of what
// it holds, and nobody needs memory for more. Tensors are named alike and are whole in both forms,
// so that either is read by any number of processes, each of which reads what it will hold.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "attnres/model/transformer.h"
#include "attnres/parallel/communicator.h"
#include "attnres/pretrained/save_model.h"
#include "attnres/text/tokenizer.h"
#include "attnres/train/optimizers/optimizer.h"
#include "attnres/train/recipe/recipe.h"

namespace attnres {

struct TrainingState {
  int64_t step = 0;                                             // updates done
  int64_t tokens = 0;                                           // seen, of the text
  double seconds = 0;                                           // of training, without evaluation
  double best_loss = std::numeric_limits<double>::max();        // of the validation text
  int64_t best_step = 0;                                        // 0 before the first evaluation
  double validation_loss = std::numeric_limits<double>::max();  // when last measured
  int64_t peak_bytes = 0;  // of a process of the run at most: resident, or on its GPU
  // Lengths of the run's logs when the checkpoint was made.
  int64_t metrics_bytes = 0, probes_bytes = 0, samples_bytes = 0;
};

// A model in training, or the part of it that a process has.
struct Training {
  // A whole model before the first step.
  Training(std::unique_ptr<Transformer> made, const TrainConfig& config);
  // Some of its sites, with their parameters' factors.
  Training(std::unique_ptr<Transformer> made, const TrainConfig& config,
           std::vector<UpdateFactors> factors);

  std::unique_ptr<Transformer> model;
  Optimizer optimizer;  // of the model's parameters
  TrainingState state;
  StoredGeneration generation = {};  // of the model that training began with
  // That model, where a checkpoint holds an adapter of it: where it lies, the names of its files'
  // tensors, and which parameters of the model in training are not in these files, by site and
  // role.
  struct Base {
    std::filesystem::path path;
    FileLayout layout;
    std::set<std::pair<int, std::string>> beyond;
  };
  std::optional<Base> base = {};
};

// Replaces the folder in one step: a process killed at any moment leaves the old or the new one.
// Throws Error when the disk is full; then the old one stands.
void save_checkpoint(const std::filesystem::path& folder, const Training& training,
                     const Tokenizer& tokenizer, int64_t context);
// The same by all ranks of a run, each with its part; the tokenizer is rank 0's, null elsewhere.
// Throws CommonFailure on every rank where one fails.
void save_checkpoint(const std::filesystem::path& folder, const Training& part,
                     const Tokenizer* tokenizer, int64_t context, Communicator& world);
// The model, or the adapter, alone.
void save_trained(const std::filesystem::path& folder, const Training& training,
                  const Tokenizer& tokenizer, int64_t context);
// The model alone, as save_model_folder, by all ranks.
void save_model_folder(const std::filesystem::path& folder, const Training& part,
                       const Tokenizer* tokenizer, int64_t context, Communicator& world);

// How a run of one process that begins with a model's weights keeps them: float32, or, where it
// trains none of those that the files store packed or in 16 bits, these as they are stored; then
// its checkpoints hold an adapter. That also where it trains maps of low rank beside them.
struct BaseWeights {
  WeightFormats formats = {};
  bool is_base = false;  // of an adapter
};
BaseWeights base_weights(const ModelDirectory& from, const ModelConfig& model,
                         const TrainConfig& config);

// Throws Error when the file is missing or damaged.
TrainingState read_training_state(const std::filesystem::path& folder);

// What a process holds of a model in training.
struct ModelPart {
  SiteSet sites = {};
  const TensorGroup* group = nullptr;       // that shares these sites' layers
  std::vector<UpdateFactors> factors = {};  // of its parameters; none: those of the whole model
};

// Such a part of the checkpoint of a `model` with `vocab_size` tokens, or more. Throws Error when
// anything of it is missing, damaged, of another model or optimizer, or of another checkpoint than
// the rest.
Training load_checkpoint(const std::filesystem::path& folder, const ModelConfig& model,
                         int64_t vocab_size, const TrainConfig& config, const ModelPart& part = {});

}  // namespace attnres
