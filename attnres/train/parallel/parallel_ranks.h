// Which part of a run each process has, and with whom it shares what.
#pragma once

#include <memory>

#include "attnres/parallel/communicator.h"
#include "attnres/parallel/tensor_ranks.h"
#include "attnres/train/recipe/recipe.h"

namespace attnres {

// The ranks of a tensor group are neighbours, and so are those of a replica.
struct RankPlace {
  int replica = 0;
  int pipeline = 0;  // its rank in the replica's pipeline
  int tensor = 0;    // and in the tensor group that has these stages
};
RankPlace place_of_rank(int rank, const ParallelConfig& parallel);
int rank_at(const RankPlace& place, const ParallelConfig& parallel);

class ParallelRanks {
 public:
  // All ranks make one at the same time. The world must outlive it. Throws Error where the
  // configuration asks for another number of processes.
  ParallelRanks(const ParallelConfig& parallel, Communicator& world);

  const RankPlace& place() const { return place_; }
  Communicator& world() const { return world_; }
  Communicator& replica() const { return *replica_; }  // all ranks of this replica
  // Those of this replica at the same place in their tensor groups, by their stages.
  Communicator& pipeline() const { return *pipeline_; }
  // Those that hold the same as this one, by replica.
  Communicator& replicas() const { return *replicas_; }
  // Those that share every layer with this one, and as a model takes them; null where it has whole
  // ones.
  Communicator* tensor() const { return tensor_.get(); }
  const TensorGroup* group() const { return group_.get(); }

  void require_nothing_left() const;

 private:
  RankPlace place_;
  Communicator& world_;
  std::unique_ptr<Communicator> replica_, pipeline_, replicas_, tensor_;
  std::unique_ptr<TensorRanks> group_;
};

}  // namespace attnres
