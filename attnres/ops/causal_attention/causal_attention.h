// Causal attention in tiles (Dao, arXiv 2307.08691), forward and backward:
//
//   o_t = sum_{s <= t + N - T} softmax_s(q_t . k_s / sqrt(K)) v_s
//
// q [B, T, H, K] of the last T tokens, k and v [B, N, G, K] of these and those before them, N >= T,
// where head h reads the keys and values of head h G / H;
// float32 or bfloat16, for processors with AVX-512, whose products of small blocks come from oneDNN
// through libtorch. Scores and softmaxes are float32; bfloat16 are the products' operands, so the
// weights too. No tensor of T x N numbers exists: kept for the backward are o and a number a query
// and head. Largest errors relative to the largest magnitude: float32 1e-5, bfloat16 2e-2. The same
// bits for any number of threads.
//
// In Python: torch.ops.attnres.tiled_causal_attention(q, k, v) gives (o, lse), lse [B, H, T] the
// logarithms of the softmaxes' normalisers, without a gradient.
#pragma once

#include <ATen/core/Tensor.h>

namespace attnres {

// Whether it can be computed here.
bool can_tile_attention(const at::Tensor& q_BTHK, const at::Tensor& k_BNGK,
                        const at::Tensor& v_BNGK);

// [B, T, H, K]. Differentiable once. Throws Error unless it can be computed here.
at::Tensor tiled_causal_attention(const at::Tensor& q_BTHK, const at::Tensor& k_BNGK,
                                  const at::Tensor& v_BNGK);

}  // namespace attnres
