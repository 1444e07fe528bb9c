#include "attnres/train/run/first_weights.h"

#include <utility>

#include "attnres/pretrained/adapter.h"
#include "attnres/support/compute_device.h"
#include "attnres/support/error.h"
#include "attnres/train/run_folder/run_folder.h"

namespace attnres {
namespace {

std::unique_ptr<Transformer> drawn_model(const TrainJob& job, int64_t vocab_size,
                                         const ModelPart& part) {
  return std::make_unique<Transformer>(job.recipe.model, vocab_size, job.recipe.train.seed,
                                       precision_of(job.recipe.train), compute_device(), part.sites,
                                       part.group);
}

// Of one process, beside what stays as it is.
Training training_of_base(const TrainJob& job, const BaseWeights& base) {
  const TrainConfig& train = job.recipe.train;
  Precision precision = precision_of(train);
  precision.weights = base.formats;
  Training training(job.from->load_as(job.recipe.model, train.seed, precision), train);
  training.base = {job.from->base(), job.from->adapter_layout(),
                   job.from->beyond_base(*training.model)};
  return training;
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

WeightFormats kept_weights(const TrainJob& job) {
  if (job.recipe.parallel.processes() > 1) return {};
  const auto formats = [&](const ModelDirectory& model) {
    return base_weights(model, job.recipe.model, job.recipe.train).formats;
  };
  if (job.from != nullptr) return formats(*job.from);
  const std::filesystem::path last = RunPaths{job.out}.last();
  return is_adapter_folder(last) ? formats(ModelDirectory(last)) : WeightFormats();
}

Training make_training(const TrainJob& job, int64_t vocab_size, FirstWeights weights,
                       const ModelPart& part) {
  const TrainConfig& train = job.recipe.train;
  if (weights == FirstWeights::of_checkpoint) {
    return load_checkpoint(RunPaths{job.out}.last(), job.recipe.model, vocab_size, train, part);
  }
  const auto training_of = [&](std::unique_ptr<Transformer> model) {
    return part.factors.empty() ? Training(std::move(model), train)
                                : Training(std::move(model), train, part.factors);
  };
  if (weights == FirstWeights::drawn) return training_of(drawn_model(job, vocab_size, part));
  const bool is_alone = job.recipe.parallel.processes() == 1;
  const BaseWeights base =
      is_alone ? base_weights(*job.from, job.recipe.model, train) : BaseWeights();
  Training training =
      base.is_base ? training_of_base(job, base)
                   : training_of(job.from->load(precision_of(train), part.sites, part.group));
  training.generation = stored_generation(*job.from);
  return training;
}

}  // namespace attnres
