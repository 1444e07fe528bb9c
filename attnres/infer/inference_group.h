// A tensor group that continues or scores sequences: processes with a part of the model each
// (layers/tensor_parallel.h), all of which make every pass.
//
// Rank 0 leads: it alone has prompts, an engine and a sampler. What the others have to do with it
// is to load their parts, to do to a pool of their own what is done to rank 0's, and to make the
// same calls of the model; they follow until it says that there is nothing further. What is done to
// the sequences is recorded, and sent with the next pass; pools that are treated alike number their
// sequences alike.
#pragma once

#include <memory>
#include <utility>

#include "attnres/infer/group_order.h"
#include "attnres/infer/inference_model.h"
#include "attnres/layers/sequence_pool.h"
#include "attnres/model/transformer.h"
#include "attnres/parallel/communicator.h"
#include "attnres/parallel/tensor_ranks.h"

namespace attnres {

// Rank 0's side. Where a rank fails alone the group cannot go on: all calls of the leader and its
// model end it, on every rank (Communicator::abort).
class GroupLeader {
 public:
  // All of these ranks are one tensor group. They must outlive it.
  explicit GroupLeader(Communicator& ranks) : ranks_(ranks), group_(ranks) {}
  GroupLeader(const GroupLeader&) = delete;
  GroupLeader& operator=(const GroupLeader&) = delete;

  // Once. The leader must outlive the model. Throws CommonFailure, and the others have left, where
  // a rank cannot load its part, or has another model or build than rank 0.
  std::unique_ptr<InferenceModel> load(const LoadTransformer& load);
  // There is nothing further to do. Once more does nothing.
  void end();

 private:
  class Model;

  template <class Compute>
  auto tell(GroupOrder order, const Compute& compute);

  Communicator& ranks_;
  TensorRanks group_;
  GroupOrders untold_;  // to the others
  bool has_ended_ = false;
};

// The others' side.
class GroupFollower {
 public:
  // The ranks must outlive it.
  GroupFollower(Communicator& ranks, LoadTransformer load)
      : ranks_(ranks), group_(ranks), load_(std::move(load)) {}
  GroupFollower(const GroupFollower&) = delete;
  GroupFollower& operator=(const GroupFollower&) = delete;

  // Does what rank 0 says until it ends. Throws CommonFailure as GroupLeader::load, and Error where
  // this rank cannot go on.
  void follow();
  // What it says next.
  GroupOrders hear();
  // Does it. False where there is nothing further.
  bool obey(const GroupOrders& orders);

 private:
  void run(const LoadOrder& order);
  void run(const CountTokensOrder& order);
  void run(const MakePoolOrder& order);
  void run(const ChangePoolOrder& order);
  void run(const DecodeOrder& order);
  void run(const ReadOrder& order);
  void run(const EndOrder&) {}

  Communicator& ranks_;
  TensorRanks group_;
  LoadTransformer load_;
  std::unique_ptr<LocalModel> part_;
  std::unique_ptr<SequencePool> pool_;
};

}  // namespace attnres
