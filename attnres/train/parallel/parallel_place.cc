#include "attnres/train/parallel/parallel_place.h"

#include <optional>

#include "attnres/parallel/update_owners.h"
#include "attnres/train/recipe/update_factors.h"

namespace attnres {
namespace {

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
      ranks(recipe.parallel, world),
      shapes(recipe.model, vocab_size, /*seed=*/std::nullopt, precision_of(recipe.train),
             at::kMeta),
      plan(plan_of(shapes, recipe.parallel)),
      owners(recipe.parallel.shard_optimizer
                 ? update_owners(shapes.parameters(), plan.sites_by_rank(), ranks.replicas().size())
                 : std::vector<int>()) {}

ModelPart ParallelPlace::part() const {
  ModelPart part = {.sites = plan.sites_of(ranks.place().pipeline), .group = ranks.group()};
  const std::vector<UpdateFactors> all =
      update_factors(shapes.parameters(), shapes.sublayers(), recipe.train);
  for (size_t i = 0; i < all.size(); ++i) {
    // As stages_with has it, and in the order of the whole model.
    const Parameter& parameter = shapes.parameters().all()[i];
    if (stages_with(parameter, std::vector<SiteSet>{part.sites}).empty()) continue;
    UpdateFactors& own = part.factors.emplace_back(all[i]);
    if (!owners.empty() && owners[i] != replica()) own.rate = 0;
  }
  return part;
}

}  // namespace attnres
