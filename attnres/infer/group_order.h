// What rank 0 of a tensor group tells the others to do with it (inference_group.h).
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "attnres/infer/inference_model.h"
#include "attnres/layers/sequence_pool.h"

namespace attnres {

struct LoadOrder {};

struct CountTokensOrder {
  SequencePoolSize size = {};
};

// In the place of the pool before.
struct MakePoolOrder {
  SequencePoolSize size = {};
};

struct ChangePoolOrder {
  PoolChange change = {};
  int64_t result = 0;  // on rank 0
};

// InferenceModel::decode.
struct DecodeOrder {
  std::vector<int32_t> ids = {};
  std::vector<Continuation> continuations = {};
  bool depth_weights = false;  // whether they are brought together

  void show_to(auto& visitor) { visitor(ids, continuations, depth_weights); }
};

// A pass over whole sequences, without a pool.
struct ReadOrder {
  int64_t sequences = 1;
  std::vector<int64_t> ids = {};  // of sequence after sequence, all of one length

  void show_to(auto& visitor) { visitor(sequences, ids); }
};

struct EndOrder {};

using GroupOrder = std::variant<LoadOrder, CountTokensOrder, MakePoolOrder, ChangePoolOrder,
                                DecodeOrder, ReadOrder, EndOrder>;

// What is sent at once: any number of changes, and what comes after them.
using GroupOrders = std::vector<GroupOrder>;

}  // namespace attnres
