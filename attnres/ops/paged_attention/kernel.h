// Attention of single queries over tokens that lie in pages. Raw pointers, no tensor library, no
// threads of their own.
#pragma once

#include <cstdint>

#include "attnres/ops/storage.h"

namespace attnres::kernel {

// The attention of a query's H heads over tokens of a sequence, head h reading the keys and values
// of head h G / H. The token `t` of the sequence is row pages[t / page_tokens] * page_tokens +
// t % page_tokens of `keys` and `values`.
template <class Storage>
struct PagedAttention {
  const Storage* queries = nullptr;  // [H, K]
  const Storage* keys = nullptr;     // [rows, G, K]
  const Storage* values = nullptr;   // [rows, G, V], rows `value_row` numbers apart
  const int64_t* pages = nullptr;
  int64_t page_tokens = 0;
  int64_t H = 0, G = 0, K = 0, V = 0;
  int64_t value_row = 0;
  float scale = 1;

  // sums[h] = sum_t exp(s_t - max[h]) v_t and sum[h] = sum_t exp(s_t - max[h]), where
  // s_t = scale q_h . k_t and max[h] is the largest, over the tokens of a call.
  float* max = nullptr;   // [H]
  float* sum = nullptr;   // [H]
  float* sums = nullptr;  // [H, V]
};

// Over tokens `first` to `last` - 1, one at least.
ATTNRES_DECLARE_SINGLE(paged_attention, PagedAttention)

}  // namespace attnres::kernel
