// What causal attention does between its matrix products, on tiles of kQueries queries. A tile is
// transposed, a row for each key and a column for each query, so that every step works on whole
// vectors of queries. Raw pointers, no tensor library, no threads of its own.
//
// Operands of products are float32, or bfloat16 in the order in which processors multiply it: as a
// right operand, of rows r and r + 1 the numbers of each column side by side ("pairs").
#pragma once

#include <cstdint>

#include "attnres/ops/storage.h"

namespace attnres::kernel {

inline constexpr int64_t kQueries = 64;

// Keys first_key, first_key + 1, ... num_keys of them, of queries first_query, ...: those at or
// before a query count, the last `window` of them if it is not 0.
struct AttentionTile {
  int64_t first_key, num_keys, first_query;
  int64_t window;
  float scale;
};

// The online softmax over keys. Scores [num_keys, kQueries] become p = e^{scale s - max}, zero
// where a key does not count; max and sum are carried from tile to tile, and `rescale`
// is what the sums over earlier tiles are to be multiplied by.
template <class Storage>
struct AttentionSoftmax {
  AttentionTile tile;
  const float* scores;
  Storage* weights;            // [num_keys, kQueries], bfloat16 in pairs; may be the scores
  float *max, *sum, *rescale;  // [kQueries]
};

// p = e^{scale s - lse} and ds = p (dp - d) scale, as left operands, and ds as a right operand.
template <class Storage>
struct AttentionSoftmaxBackward {
  AttentionTile tile;
  const float *scores, *grad_weights;  // [num_keys, kQueries]: s, dp
  const float *lse, *along;            // [kQueries]: d = do . o
  Storage *weights, *grad_scores;      // may be the scores and their gradients
  Storage* grad_scores_right;          // not of float32, which is the same
};

void attention_softmax(const AttentionSoftmax<float>&);
void attention_softmax(const AttentionSoftmax<BFloat16>&);
void attention_softmax_backward(const AttentionSoftmaxBackward<float>&);
void attention_softmax_backward(const AttentionSoftmaxBackward<BFloat16>&);

}  // namespace attnres::kernel
