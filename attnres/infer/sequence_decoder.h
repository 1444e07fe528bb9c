// What an engine computes with: a model, and the sequences of a pool of it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "attnres/infer/inference_model.h"
#include "attnres/infer/step_depth_weights.h"
#include "attnres/layers/sequence_pool.h"

namespace attnres {

class SequenceDecoder {
 public:
  // The model must outlive it.
  SequenceDecoder(const InferenceModel& model, const SequencePoolSize& size)
      : model_(model), pool_(model.make_pool(size)) {}

  const SequencePool& pool() const { return *pool_; }

  // As the pool's functions of these names.
  int64_t add() { return change({.kind = PoolChange::Kind::add}); }
  int64_t fork(int64_t sequence) { return change({PoolChange::Kind::fork, sequence}); }
  int64_t truncate(int64_t sequence, int64_t length) {
    return change({PoolChange::Kind::truncate, sequence, length});
  }
  void snapshot(int64_t sequence) { change({PoolChange::Kind::snapshot, sequence}); }
  void free(int64_t sequence) { change({PoolChange::Kind::free, sequence}); }

  // See InferenceModel::decode.
  at::Tensor hidden(const std::vector<int32_t>& ids, const std::vector<Continuation>& continuations,
                    StepDepthWeights* weights = nullptr) {
    return model_.decode(*pool_, ids, continuations, weights);
  }

 private:
  int64_t change(const PoolChange& change) { return model_.change(*pool_, change); }

  const InferenceModel& model_;
  std::unique_ptr<SequencePool> pool_;
};

}  // namespace attnres
