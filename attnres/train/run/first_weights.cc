#include "attnres/train/run/first_weights.h"

#include <utility>

#include "attnres/support/compute_device.h"
#include "attnres/support/error.h"
#include "attnres/train/run_folder/run_folder.h"

namespace attnres {
namespace {

std::unique_ptr<Transformer> make_model(const TrainJob& job, int64_t vocab_size,
                                        FirstWeights weights, const ModelPart& part) {
  const Precision precision = precision_of(job.recipe.train);
  if (weights == FirstWeights::drawn) {
    return std::make_unique<Transformer>(job.recipe.model, vocab_size, job.recipe.train.seed,
                                         precision, compute_device(), part.sites, part.group);
  }
  return job.from->load(precision, part.sites, part.group);
}

}  // namespace

int64_t embeddings_of(const TrainJob& job, int64_t vocab_size, FirstWeights weights) {
  if (weights == FirstWeights::drawn) return vocab_size;
  if (weights == FirstWeights::of_checkpoint) {
    return ModelDirectory(RunPaths{job.out}.last()).vocab_size();
  }
  const int64_t there = job.from->vocab_size();
  require(there >= vocab_size,
          "{}: the model has {} token embeddings, but its tokenizer has {} tokens, and each needs "
          "one",
          job.from->path().string(), there, vocab_size);
  return there;
}

Training make_training(const TrainJob& job, int64_t vocab_size, FirstWeights weights,
                       const ModelPart& part) {
  const TrainConfig& train = job.recipe.train;
  if (weights == FirstWeights::of_checkpoint) {
    return load_checkpoint(RunPaths{job.out}.last(), job.recipe.model, vocab_size, train, part);
  }
  auto model = make_model(job, vocab_size, weights, part);
  Training training = part.factors.empty() ? Training(std::move(model), train)
                                           : Training(std::move(model), train, part.factors);
  if (weights == FirstWeights::of_model) training.generation = stored_generation(*job.from);
  return training;
}

}  // namespace attnres
