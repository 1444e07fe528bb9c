// Where a process stands among those that train a model together: `parallel.data` replicas of it,
// each a pipeline of `parallel.pipeline` ranks with `parallel.virtual` stages each. Rank r of all
// is rank r mod pipeline of replica floor(r / pipeline), and holds the parameters of its stages.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "attnres/model/transformer.h"
#include "attnres/parallel/communicator.h"
#include "attnres/parallel/pipeline.h"
#include "attnres/train/recipe.h"

namespace attnres {

struct ParallelPlace {
  // All ranks make one at the same time, with the same recipe. The world must outlive it. Throws
  // Error where the recipe asks for another number of processes.
  ParallelPlace(const Recipe& recipe, int64_t vocab_size, Communicator& world);
  ParallelPlace(const ParallelPlace&) = delete;
  ParallelPlace& operator=(const ParallelPlace&) = delete;

  int replica() const { return world.rank() / plan.size.ranks; }
  // Whether this rank has the last stage of its replica, and so the head.
  bool has_output() const;
  SiteSet sites() const { return plan.sites_of(pipeline_ranks->rank()); }
  // The learning rates' factors (learning_rates.h) of the parameters of these sites.
  std::vector<double> rate_factors() const;

  Recipe recipe;
  Communicator& world;
  std::unique_ptr<Communicator> pipeline_ranks;  // of this replica
  std::unique_ptr<Communicator> replicas;        // those of other replicas that hold the same
  Transformer shapes;                            // of the whole model, without numbers
  PipelinePlan plan;
};

}  // namespace attnres
