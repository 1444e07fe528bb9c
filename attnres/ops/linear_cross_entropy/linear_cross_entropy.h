// The output layer and its loss together, so that the logits never exist all at once.
//
//   logits_V = weight hidden_t,   nll_t = logsumexp(logits) - logits[target_t]
//
// hidden [M, D], weight [V, D] (no bias), targets [M] int64: token numbers in [0, V), or -100 for
// tokens that are left out. hidden and weight share one device and floating dtype, or hidden is
// bfloat16 and weight float32. targets are there too, or on the CPU.
//
// Tokens are taken in chunks: at most 4 Mi logits (16 MiB of float32), on a GPU 64 Mi, or 64 rows
// where the vocabulary is so large that fewer would leave the matrix product waiting for the
// weight; a second copy is there for a moment, on a GPU only as large as gradients are. Logits,
// softmax and gradient sums are float32, or float64 for float64 inputs; the products that give
// gradients are of hidden's dtype. So are on a GPU those that give logits, summed in float32: of
// bfloat16 hidden, the weight is rounded there too.
//
// Everything here throws Error, naming the argument, where the inputs are not as said. The numbers
// of targets that lie on another device it checks itself, as to look at them is to wait for it: a
// GPU then stops, and whatever waits for it next throws c10::Error.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace attnres {

inline constexpr int64_t kIgnoredTarget = -100;  // of tokens that are left out

// The tokens of a chunk.
int64_t tokens_in_logits(int64_t vocabulary, c10::DeviceType device);

// scale * the sum of nll_t over the tokens that count: a scalar, float32 or float64. For the mean,
// the scale is one over their number. Differentiable once in hidden and weight: the gradients are
// computed together with the loss, chunk by chunk, when they will be needed.
at::Tensor linear_cross_entropy(const at::Tensor& hidden_MD, const at::Tensor& weight_VD,
                                const at::Tensor& targets_M, double scale);

// The same composed of tensor operations, with all logits at once: differentiable any number of
// times.
at::Tensor linear_cross_entropy_composed(const at::Tensor& hidden_MD, const at::Tensor& weight_VD,
                                         const at::Tensor& targets_M, double scale);

// -nll_t for every token, float32 or float64, and 0 where the target is -100. No gradient.
at::Tensor token_log_probabilities(const at::Tensor& hidden_MD, const at::Tensor& weight_VD,
                                   const at::Tensor& targets_M);

}  // namespace attnres
