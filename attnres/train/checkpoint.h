// Checkpoints: a model directory plus what a run needs to go on exactly where it was.
//
//   config.json, model.safetensors, tokenizer files   the model, as pretrained/model_directory.h
//   says optimizer.safetensors                             the optimizer's moments
//   training_state.json                               TrainingState, with a checksum
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>

#include "attnres/model/transformer.h"
#include "attnres/text/tokenizer.h"
#include "attnres/train/optimizer.h"

namespace attnres {

struct TrainingState {
  int64_t step = 0;                                             // updates done
  int64_t tokens = 0;                                           // seen
  double seconds = 0;                                           // of training, without evaluation
  double best_loss = std::numeric_limits<double>::max();        // of the validation text
  int64_t best_step = 0;                                        // 0 before the first evaluation
  double validation_loss = std::numeric_limits<double>::max();  // when last measured
  // Lengths of the run's logs when the checkpoint was made.
  int64_t metrics_bytes = 0, probes_bytes = 0, samples_bytes = 0;
};

// Replaces the folder in one step: a process killed at any moment leaves the old or the new one.
// Throws Error when the disk is full; then the old one stands.
void save_checkpoint(const std::filesystem::path& folder, const Transformer& model,
                     const Tokenizer& tokenizer, int64_t context, const Optimizer& optimizer,
                     const TrainingState& state);

// Throws Error when the file is missing or damaged.
TrainingState read_training_state(const std::filesystem::path& folder);

// Fills the model's parameters and the optimizer. Throws Error when anything does not fit.
TrainingState load_checkpoint(const std::filesystem::path& folder, Transformer& model,
                              Optimizer& optimizer);

}  // namespace attnres
