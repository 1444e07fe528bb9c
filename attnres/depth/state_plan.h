// What a depth state is before a site, said without running a mixer: for whoever sends it, splits
// it over processes, frees it or counts it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "attnres/parameters/tensor_group.h"

namespace attnres {

// The axis along which a tensor of a state is split over a tensor group. All of them are [T, ...],
// and may be split along T, but for their halo.
enum class ShardAxis {
  tokens,
  heads,  // [T, heads, ..]: along the heads too, as the attention is that they come from
};

// A tensor of a state: [T, sizes..].
struct PlannedTensor {
  std::string name = {};            // "embedding", "block 2", "keys of layer 1"
  std::vector<int64_t> sizes = {};  // of a token
  ShardAxis axis = ShardAxis::tokens;
  // Every head of a reader reads all heads: who holds some of them must be given the others.
  bool mixes_heads = false;
  // Tokens before a token, of the same sequence, that its reader reads too: who holds some tokens
  // must be given that many before them, and while decoding keep the last ones of each sequence.
  int64_t halo = 0;
  // Whether this site's read or write reads a sealed tensor, and the last site whose does.
  // Where that is before this site it need not cross, and may be undefined in the state.
  bool read = true;
  int last_reader = 0;

  int64_t numbers() const;  // of a token
  // What one of a tensor group's processes has of so many tokens: its own tokens, or its own heads
  // of all of them.
  std::vector<int64_t> part_sizes(const TensorPart& part, int64_t tokens) const;
};

// What crosses before a site: DepthState's tensors, in their order.
struct StatePlan {
  std::vector<PlannedTensor> sealed = {};
  std::vector<PlannedTensor> open = {};
};

}  // namespace attnres
