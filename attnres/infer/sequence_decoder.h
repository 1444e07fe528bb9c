// What an engine computes with: a model, and the sequences of a pool of it.
//
// In a tensor group (layers/tensor_parallel.h) rank 0 has the engine, and all others a pool of
// their own parts: what is done to rank 0's is recorded, and sent with the next pass, which all of
// them make (inference_group.h). Pools that are treated alike number their sequences alike.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "attnres/infer/step_depth_weights.h"
#include "attnres/layers/sequence_pool.h"
#include "attnres/model/transformer.h"

namespace attnres {

class GroupLeader;

// Something that is done to a pool's sequences, other than appending.
struct PoolChange {
  enum class Kind : int64_t { add, fork, truncate, snapshot, free };
  Kind kind = Kind::add;
  int64_t sequence = -1;  // none yet of add
  int64_t length = 0;     // of truncate
  int64_t result = 0;     // what the pool's function of that name returned, if anything
};
// Does it, and says what `result` is. Throws as the pool's function.
int64_t apply(const PoolChange& change, SequencePool& pool);

// How many tokens a pool of this model has room for, `size.tokens` at most, where so many bytes of
// memory are free; all where that is 0, as where nothing is known of it.
int64_t tokens_that_fit(const Transformer& model, SequencePoolSize size, int64_t free_bytes);

// The last layer's output [T, D] of these tokens of the pool's sequences. Where `weights` is not
// null it gets the tokens' depth weights.
at::Tensor decode(const Transformer& model, SequencePool& pool, const std::vector<int32_t>& ids,
                  const std::vector<Continuation>& continuations, StepDepthWeights* weights);

class SequenceDecoder {
 public:
  // Of rank 0 of a group with its leader. Model and leader must outlive it.
  SequenceDecoder(const Transformer& model, const SequencePoolSize& size,
                  GroupLeader* leader = nullptr);

  const SequencePool& pool() const { return *pool_; }

  // As the pool's functions of these names.
  int64_t add() { return change({.kind = PoolChange::Kind::add}); }
  int64_t fork(int64_t sequence) { return change({PoolChange::Kind::fork, sequence}); }
  int64_t truncate(int64_t sequence, int64_t length) {
    return change({PoolChange::Kind::truncate, sequence, length});
  }
  void snapshot(int64_t sequence) { change({PoolChange::Kind::snapshot, sequence}); }
  void free(int64_t sequence) { change({PoolChange::Kind::free, sequence}); }

  // See decode.
  at::Tensor hidden(const std::vector<int32_t>& ids, const std::vector<Continuation>& continuations,
                    StepDepthWeights* weights = nullptr);

 private:
  int64_t change(const PoolChange& change);

  const Transformer& model_;
  GroupLeader* leader_;  // null without a group
  std::unique_ptr<SequencePool> pool_;
  std::vector<PoolChange> untold_;  // to the others of the group
};

}  // namespace attnres
