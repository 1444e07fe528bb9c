// Attention of tokens that are decoded over what is kept of their sequences:
//
//   o = sum_t softmax_t(q . k_t / sqrt(K)) v_t
//
// and with sinks z_h, one more score of each head that stands for no value,
//
//   o = sum_t e^s_t v_t / (sum_t e^s_t + e^z)
//
// A sequence's tokens are in pages, in any order. On the CPU in float32 and bfloat16 keys and
// values are read once, where they lie, by all threads; elsewhere the operation is composed of
// tensor operations. Scores, softmaxes and sums are float32, of float64 numbers float64.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "attnres/ops/device_table.h"

namespace attnres {

// The tokens of a sequence that a query sees, one or more: those from `first` up to, not including,
// `last`, the t-th of which is row pages[t / page_tokens] * page_tokens + t % page_tokens.
struct SeenTokens {
  const int64_t* pages = nullptr;  // not owned
  int64_t first = 0, last = 0;
};

// Whether devices have kernels for these numbers, float32 or bfloat16. Others are better gathered
// for all queries at once.
bool can_page_attention(const at::Tensor& q_THK);

// q [T, H, K], `keys` [rows, G, K] and `values` [rows, G, V] of one dtype and device, head h
// reading those of h G / H; of each query what it sees. Gives [T, H, V], without gradients. A
// query's result does not depend on the others. Throws Error unless the shapes fit.
at::Tensor paged_attention(const at::Tensor& q_THK, const at::Tensor& keys,
                           const at::Tensor& values, const std::vector<SeenTokens>& seen,
                           int64_t page_tokens, const at::Tensor& sinks_H = {});

// The same over latents [rows, C], which are the keys of all heads, and of which the first `rank`
// numbers are their values; with `scale` in the place of 1 / sqrt(K). q [T, H, C] gives
// [T, H, rank].
at::Tensor paged_latent_attention(const at::Tensor& q_THC, const at::Tensor& latents, int64_t rank,
                                  double scale, const std::vector<SeenTokens>& seen,
                                  int64_t page_tokens);

// Either, of inputs that fit, and what each device has for it. Rows of values may lie apart.
using PagedAttentionFunction = at::Tensor(const at::Tensor& q_THK, const at::Tensor& keys,
                                          const at::Tensor& values, double scale,
                                          const std::vector<SeenTokens>& seen, int64_t page_tokens,
                                          const at::Tensor& sinks_H);
PagedAttentionFunction paged_attention_composed;
extern DeviceTable<PagedAttentionFunction> paged_attention_table;

}  // namespace attnres
