#include "attnres/train/parallel_place.h"

#include <optional>

#include "attnres/support/error.h"
#include "attnres/train/learning_rates.h"

namespace attnres {
namespace {

std::unique_ptr<Communicator> pipeline_of(Communicator& world, const Recipe& recipe) {
  const int ranks = static_cast<int>(recipe.parallel.pipeline);
  require(world.size() == recipe.parallel.processes(),
          "parallel: the recipe asks for {} x {} processes, but there are {}", recipe.parallel.data,
          ranks, world.size());
  return world.split(world.rank() / ranks);
}

PipelinePlan plan_of(const Transformer& shapes, const ParallelConfig& parallel) {
  return plan_pipeline(
      shapes.mixer(), shapes.sublayers(),
      {static_cast<int>(parallel.pipeline), static_cast<int>(parallel.virtual_stages)},
      transfer_policy(parallel.policy));
}

}  // namespace

ParallelPlace::ParallelPlace(const Recipe& of_run, int64_t vocab_size, Communicator& of_all)
    : recipe(of_run),
      world(of_all),
      pipeline_ranks(pipeline_of(world, recipe)),
      replicas(world.split(pipeline_ranks->rank())),
      shapes(recipe.model, vocab_size, /*seed=*/std::nullopt, precision_of(recipe.train),
             at::kMeta),
      plan(plan_of(shapes, recipe.parallel)) {}

bool ParallelPlace::has_output() const {
  return pipeline_ranks->rank() == plan.size.rank_of(plan.size.stages() - 1);
}

std::vector<double> ParallelPlace::rate_factors() const {
  const std::vector<double> all =
      attnres::rate_factors(shapes.parameters(), shapes.sublayers(), recipe.train.rates);
  const SiteSet held = sites();
  std::vector<double> factors;
  for (size_t i = 0; i < all.size(); ++i) {
    // As stages_with has it, and in the order of the whole model.
    if (!stages_with(shapes.parameters().all()[i], std::vector<SiteSet>{held}).empty()) {
      factors.push_back(all[i]);
    }
  }
  return factors;
}

}  // namespace attnres
