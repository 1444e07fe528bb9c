// Checkpoints: a model directory plus what a run needs to go on exactly where it was.
//
//   config.json, model.safetensors, tokenizer files   the model, see pretrained/model_directory.h
//   optimizer.safetensors                             the optimizer's moments
//   training_state.json                               TrainingState, with a checksum
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>

#include "attnres/model/transformer.h"
#include "attnres/text/tokenizer.h"
#include "attnres/train/optimizer.h"
#include "attnres/train/recipe.h"

namespace attnres {

struct TrainingState {
  int64_t step = 0;                                             // updates done
  int64_t tokens = 0;                                           // seen
  double seconds = 0;                                           // of training, without evaluation
  double best_loss = std::numeric_limits<double>::max();        // of the validation text
  int64_t best_step = 0;                                        // 0 before the first evaluation
  double validation_loss = std::numeric_limits<double>::max();  // when last measured
  int64_t peak_bytes = 0;  // resident memory of a process of the run at its largest
  // Lengths of the run's logs when the checkpoint was made.
  int64_t metrics_bytes = 0, probes_bytes = 0, samples_bytes = 0;
};

// A model in training.
struct Training {
  // Before the first step.
  Training(std::unique_ptr<Transformer> made, const TrainConfig& config);

  std::unique_ptr<Transformer> model;
  Optimizer optimizer;  // of the model's parameters
  TrainingState state;
};

// Replaces the folder in one step: a process killed at any moment leaves the old or the new one.
// Throws Error when the disk is full; then the old one stands.
void save_checkpoint(const std::filesystem::path& folder, const Training& training,
                     const Tokenizer& tokenizer, int64_t context);

// Throws Error when the file is missing or damaged.
TrainingState read_training_state(const std::filesystem::path& folder);

// The training of a `model` with `vocab_size` tokens, or more, as it was saved. Throws Error when
// anything is missing, damaged or of another model or optimizer.
Training load_checkpoint(const std::filesystem::path& folder, const ModelConfig& model,
                         int64_t vocab_size, const TrainConfig& config);

}  // namespace attnres
