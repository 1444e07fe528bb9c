// What rank 0 of a tensor group tells the others to do with it (inference_group.h).
#pragma once

#include <cstdint>
#include <vector>

#include "attnres/infer/sequence_decoder.h"
#include "attnres/layers/sequence_pool.h"
#include "attnres/parallel/communicator.h"

namespace attnres {

// A pass over tokens of the pool's sequences, after what was done to these since the last one.
struct DecodeOrder {
  std::vector<PoolChange> changes = {};
  std::vector<int32_t> ids = {};
  std::vector<Continuation> continuations = {};
  bool depth_weights = false;  // whether they are brought together
};

struct GroupOrder {
  enum class Kind : int64_t {
    load,           // the model
    count_tokens,   // that a pool of `size` has room for on each rank
    make_pool,      // of `size`, in the place of the one before
    decode,         // `decoding`
    read_sequence,  // `ids`, by itself and without a pool
    end,
  };
  Kind kind = Kind::end;
  SequencePoolSize size = {};
  DecodeOrder decoding = {};
  std::vector<int32_t> ids = {};
};

// Of rank 0, and of all others, who wait however long.
void send_order(const GroupOrder& order, Communicator& ranks);
GroupOrder receive_order(Communicator& ranks);

}  // namespace attnres
