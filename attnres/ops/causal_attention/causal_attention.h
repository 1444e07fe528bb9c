// Causal attention in tiles (Dao, arXiv 2307.08691), forward and backward:
//
//   o_t = sum_s softmax_s(q_t . k_s / sqrt(K)) v_s    over s <= t + N - T
//
// and, with a window (Beltagy et al., arXiv 2004.05150), s > t + N - T - window: what no query of a
// block sees is not computed. With sinks z_h (after arXiv 2309.17453) one more score of each head
// stands for no value: o_t = sum_s e^s_ts v_s / (sum_s e^s_ts + e^z).
//
// q [B, T, H, K] of the last T tokens, k and v [B, N, G, K] of these and those before them, N >= T,
// where head h reads the keys and values of head h G / H. In float32 or bfloat16 on processors with
// AVX-512, whose products of small blocks come from oneDNN through libtorch, by kernels: scores and
// softmaxes are float32; bfloat16 are the products' operands, so the weights too. No tensor of T x
// N numbers exists: kept for the backward are o and a number a query and head. Largest errors
// relative to the largest magnitude: float32 1e-5, bfloat16 2e-2. The same bits for any number of
// threads. Elsewhere composed of tensor operations.
//
// In Python: torch.ops.attnres.tiled_causal_attention(q, k, v, window=0) gives (o, lse), lse
// [B, H, T] the logarithms of the softmaxes' normalisers.
#pragma once

#include <ATen/core/Tensor.h>

namespace attnres {

// Whether the kernels can compute it.
bool can_tile_attention(const at::Tensor& q_BTHK, const at::Tensor& k_BNGK,
                        const at::Tensor& v_BNGK);

// [B, T, H, K]. With a window of 0 a query sees all keys up to its own; sinks are none where they
// are undefined. Differentiable once by the kernels. Throws Error where the shapes, dtypes or
// devices do not fit.
at::Tensor tiled_causal_attention(const at::Tensor& q_BTHK, const at::Tensor& k_BNGK,
                                  const at::Tensor& v_BNGK, int64_t window = 0,
                                  const at::Tensor& sinks_H = {});

// The same composed of tensor operations: any device and dtype; values may be of another width.
at::Tensor causal_attention_composed(const at::Tensor& q_BTHK, const at::Tensor& k_BNGK,
                                     const at::Tensor& v_BNGV, int64_t window = 0,
                                     const at::Tensor& sinks_H = {});

}  // namespace attnres
