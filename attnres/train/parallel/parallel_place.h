// What a process has of a model that several train together: where it stands among them
// (parallel_ranks.h), which stages it computes, and which of their parameters it updates.
#pragma once

#include <cstdint>
#include <vector>

#include "attnres/model/transformer.h"
#include "attnres/parallel/communicator.h"
#include "attnres/parallel/pipeline.h"
#include "attnres/train/parallel/parallel_ranks.h"
#include "attnres/train/recipe/recipe.h"
#include "attnres/train/run_folder/checkpoint.h"

namespace attnres {

struct ParallelPlace {
  // All ranks make one at the same time, with the same recipe. The world must outlive it. Throws
  // Error where the recipe asks for another number of processes.
  ParallelPlace(const Recipe& of_run, int64_t vocab_size, Communicator& of_all);
  ParallelPlace(const ParallelPlace&) = delete;
  ParallelPlace& operator=(const ParallelPlace&) = delete;

  int replica() const { return ranks.place().replica; }
  // The rank of the pipeline that has the last stage, and so the head.
  int output_rank() const { return plan.size.rank_of(plan.size.stages() - 1); }
  // This process's, with the factors (update_factors.h) of its parameters: those that another
  // replica updates have a rate of 0.
  ModelPart part() const;

  Recipe recipe;
  Communicator& world;
  ParallelRanks ranks;
  Transformer shapes;  // of the whole model, without numbers
  PipelinePlan plan;
  std::vector<int> owners;  // update_owners of the whole model, or none: all replicas update all
};

}  // namespace attnres
