#include "attnres/train/first_weights.h"

#include <utility>
#include <vector>

#include "attnres/pretrained/model_directory.h"
#include "attnres/support/error.h"
#include "attnres/train/run_folder.h"

namespace attnres {
namespace {

std::unique_ptr<Transformer> make_model(const TrainJob& job, int64_t vocab_size,
                                        FirstWeights weights, const SiteSet& sites) {
  const Precision precision = precision_of(job.recipe.train);
  if (weights == FirstWeights::drawn) {
    return std::make_unique<Transformer>(job.recipe.model, vocab_size, job.recipe.train.seed,
                                         precision, at::kCPU, sites);
  }
  auto model = load_model(job.from, precision, sites);
  require(model->vocab_size() == vocab_size,
          "{}: the model has {} token embeddings, but its tokenizer has {} tokens",
          job.from.string(), model->vocab_size(), vocab_size);
  return model;
}

}  // namespace

Training make_training(const TrainJob& job, int64_t vocab_size, FirstWeights weights,
                       const ParallelPlace* place) {
  const TrainConfig& train = job.recipe.train;
  const SiteSet sites = place == nullptr ? SiteSet() : place->sites();
  std::vector<double> factors;
  if (place != nullptr) factors = place->rate_factors();
  if (weights == FirstWeights::of_checkpoint) {
    return load_checkpoint(RunPaths{job.out}.last(), job.recipe.model, vocab_size, train, sites,
                           std::move(factors));
  }
  auto model = make_model(job, vocab_size, weights, sites);
  if (place == nullptr) return {std::move(model), train};
  return {std::move(model), train, std::move(factors)};
}

}  // namespace attnres
