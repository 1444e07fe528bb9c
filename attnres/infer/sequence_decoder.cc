#include "attnres/infer/sequence_decoder.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "attnres/infer/inference_group.h"

namespace attnres {

int64_t apply(const PoolChange& change, SequencePool& pool) {
  switch (change.kind) {
    case PoolChange::Kind::add:
      return pool.add();
    case PoolChange::Kind::fork:
      return pool.fork(change.sequence);
    case PoolChange::Kind::truncate:
      return pool.truncate(change.sequence, change.length);
    case PoolChange::Kind::snapshot:
      pool.snapshot(change.sequence);
      return 0;
    case PoolChange::Kind::free:
      pool.free(change.sequence);
      return 0;
  }
  return 0;
}

int64_t tokens_that_fit(const Transformer& model, SequencePoolSize size, int64_t free_bytes) {
  const std::vector<std::vector<KeptTensor>> kept = model.kept();
  const auto fits = [&](int64_t tokens) {
    size.tokens = tokens;
    return pool_bytes(kept, size) <= free_bytes;
  };
  const int64_t wanted = size.tokens;
  if (free_bytes == 0 || fits(wanted)) return wanted;
  int64_t most = 0, too_many = wanted;
  while (too_many - most > 1) {
    const int64_t middle = most + (too_many - most) / 2;
    (fits(middle) ? most : too_many) = middle;
  }
  return most;
}

at::Tensor decode(const Transformer& model, SequencePool& pool, const std::vector<int32_t>& ids,
                  const std::vector<Continuation>& continuations, StepDepthWeights* weights) {
  const at::Tensor ids_T = at::empty({std::ssize(ids)}, at::kLong);
  std::copy(ids.begin(), ids.end(), ids_T.mutable_data_ptr<int64_t>());
  return model.hidden(ids_T, pool.append(continuations), {.observer = weights});
}

SequenceDecoder::SequenceDecoder(const Transformer& model, const SequencePoolSize& size,
                                 GroupLeader* leader)
    : model_(model), leader_(leader) {
  const auto make = [&] { pool_ = model.make_pool(size); };
  leader != nullptr ? leader->make_pools(size, make) : make();
}

int64_t SequenceDecoder::change(const PoolChange& change) {
  const int64_t result = apply(change, *pool_);
  if (leader_ != nullptr) {
    untold_.push_back(change);
    untold_.back().result = result;
  }
  return result;
}

at::Tensor SequenceDecoder::hidden(const std::vector<int32_t>& ids,
                                   const std::vector<Continuation>& continuations,
                                   StepDepthWeights* weights) {
  at::Tensor hidden_TD;
  const auto compute = [&] { hidden_TD = decode(model_, *pool_, ids, continuations, weights); };
  if (leader_ == nullptr) {
    compute();
  } else {
    leader_->decode({.changes = std::exchange(untold_, {}),
                     .ids = ids,
                     .continuations = continuations,
                     .depth_weights = weights != nullptr},
                    compute);
  }
  return hidden_TD;
}

}  // namespace attnres
