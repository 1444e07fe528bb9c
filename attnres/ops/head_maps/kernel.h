// Products of one head's matrix with one token's vector. Raw pointers, no tensor library, no
// threads of their own.
#pragma once

#include <cstdint>

#include "attnres/ops/storage.h"

namespace attnres::kernel {

// W [N, K], whose rows follow each other.
template <class Storage>
struct HeadMap {
  const Storage* weight = nullptr;
  const Storage* x = nullptr;
  Storage* y = nullptr;
  int64_t N = 0, K = 0;
};

// y_n = sum_k W_nk x_k, n from `first` to `last` - 1.
ATTNRES_DECLARE_SINGLE(head_map, HeadMap)

// y_k = sum_n W_nk x_n, k from `first` to `last` - 1. Sums are float32.
ATTNRES_DECLARE_SINGLE(transposed_head_map, HeadMap)

}  // namespace attnres::kernel
