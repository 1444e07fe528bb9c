// A tensor group that continues or scores sequences: processes with a part of the model each
// (layers/tensor_parallel.h), all of which make every pass.
//
// Rank 0 leads: it alone has prompts, an engine and a sampler. What the others have to do with it
// is to load their parts, to do to a pool of their own what is done to rank 0's
// (sequence_decoder.h), and to make the same calls of the model; they follow until it says that
// there is nothing further.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "attnres/infer/group_order.h"
#include "attnres/layers/sequence_pool.h"
#include "attnres/model/transformer.h"
#include "attnres/parallel/communicator.h"
#include "attnres/parallel/tensor_ranks.h"

namespace attnres {

// A process's part of the model.
using LoadPart = std::function<std::unique_ptr<Transformer>(const TensorGroup&)>;

// Room in a process's memory.
struct TokenRoom {
  int64_t tokens = 0;
  int64_t free_bytes = 0;
};

// Of rank 0. Where a rank fails alone the group cannot go on: all of these end it, on every rank
// (Communicator::abort).
class GroupLeader {
 public:
  // All of these ranks are one tensor group. They must outlive it.
  explicit GroupLeader(Communicator& ranks) : ranks_(ranks), group_(ranks) {}
  GroupLeader(const GroupLeader&) = delete;
  GroupLeader& operator=(const GroupLeader&) = delete;

  // Once. The leader must outlive the model. Throws CommonFailure, and the others have left, where
  // a rank cannot load its part, or has another model or build than rank 0.
  std::unique_ptr<Transformer> load(const LoadPart& load);
  // For a pool of this size, tokens_that_fit of the rank that has least room. Ranks on one machine
  // share its memory.
  TokenRoom count_tokens(const Transformer& model, const SequencePoolSize& size);
  // Others make a pool, in the place of the one before, and this rank its own.
  void make_pools(const SequencePoolSize& size, const std::function<void()>& make_own);
  // All make a pass, this rank by `compute`.
  void decode(DecodeOrder order, const std::function<void()>& compute);
  // The same of a whole sequence, by Transformer::hidden without a pool.
  void read_sequence(const std::vector<int32_t>& ids, const std::function<void()>& compute);
  // There is nothing further to do. Once more does nothing.
  void end();

 private:
  void tell(const GroupOrder& order, const std::function<void()>& compute);

  Communicator& ranks_;
  TensorRanks group_;
  bool has_ended_ = false;
};

// Of the others.
class GroupFollower {
 public:
  // The ranks must outlive it.
  GroupFollower(Communicator& ranks, LoadPart load)
      : ranks_(ranks), group_(ranks), load_(std::move(load)) {}
  GroupFollower(const GroupFollower&) = delete;
  GroupFollower& operator=(const GroupFollower&) = delete;

  // Does what rank 0 says until it ends. Throws CommonFailure as GroupLeader::load, and Error where
  // this rank cannot go on.
  void follow();
  // One thing of it. False where there is nothing further.
  bool obey(const GroupOrder& order);

 private:
  void decode(const DecodeOrder& order);

  Communicator& ranks_;
  TensorRanks group_;
  LoadPart load_;
  std::unique_ptr<Transformer> model_;
  std::unique_ptr<SequencePool> pool_;
};

}  // namespace attnres
