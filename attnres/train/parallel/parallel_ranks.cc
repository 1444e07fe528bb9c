#include "attnres/train/parallel/parallel_ranks.h"

#include "attnres/support/error.h"

namespace attnres {

RankPlace place_of_rank(int rank, const ParallelConfig& parallel) {
  const int tensor = static_cast<int>(parallel.tensor);
  const int pipeline = static_cast<int>(parallel.pipeline);
  return {rank / tensor / pipeline, rank / tensor % pipeline, rank % tensor};
}

int rank_at(const RankPlace& place, const ParallelConfig& parallel) {
  const int tensor = static_cast<int>(parallel.tensor);
  const int pipeline = static_cast<int>(parallel.pipeline);
  return (place.replica * pipeline + place.pipeline) * tensor + place.tensor;
}

ParallelRanks::ParallelRanks(const ParallelConfig& parallel, Communicator& world)
    : place_(place_of_rank(world.rank(), parallel)), world_(world) {
  require(world.size() == parallel.processes(),
          "parallel: the recipe asks for {} x {} x {} processes, but there are {}", parallel.data,
          parallel.pipeline, parallel.tensor, world.size());
  const auto same = [&](const RankPlace& place) { return world.split(rank_at(place, parallel)); };
  replica_ = same({.replica = place_.replica});
  pipeline_ = same({.replica = place_.replica, .tensor = place_.tensor});
  replicas_ = same({.pipeline = place_.pipeline, .tensor = place_.tensor});
  if (parallel.tensor == 1) return;
  tensor_ = same({.replica = place_.replica, .pipeline = place_.pipeline});
  group_ = std::make_unique<TensorRanks>(*tensor_);
}

void ParallelRanks::require_nothing_left() const {
  for (Communicator* communicator :
       {&world_, replica_.get(), pipeline_.get(), replicas_.get(), tensor_.get()}) {
    if (communicator != nullptr) communicator->require_nothing_left();
  }
}

}  // namespace attnres
