// Kimi Delta Attention (arXiv 2510.26692) between its input and its output maps, while decoding:
// one call for what is otherwise some sixty operations on tensors, which is what a token waits for.
// By token, head and channel, with * for each convolution over the sequence:
//
//   q = unit(silu(conv_q * x_q)) / sqrt(K),  k = unit(silu(conv_k * x_k)),  v = silu(conv_v * x_v)
//   a = e^(lb sigmoid(e^A_log (f + dt_bias)))   with a bound lb < 0, else
//   a = e^(-e^A_log softplus(f + dt_bias));     beta = sigmoid(b)
//   S <- diag(a) S,  S <- S + beta k (v - k^T S)^T,  o = S^T q      (gated_delta_rule.h)
//   y = RMSNorm(o) gain sigmoid(g)
//
// unit(x) = x / sqrt(sum x^2 + 1e-6). On the CPU in float32, float64 and bfloat16 by a kernel;
// elsewhere, and where gradients are wanted, composed of operations on tensors. Computed in float64
// for float64 and in float32 otherwise. Largest error of the kernel against float64, relative to
// the largest magnitude: 2e-5 in float32, 1e-11 in float64.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <vector>

#include "attnres/ops/device_table.h"

namespace attnres {

// The inputs of B sequences of T tokens each, one after another; rows may lie apart, their numbers
// may not.
struct DeltaAttentionInputs {
  std::array<at::Tensor, 3> inputs;   // x_q, x_k, x_v: [B T, P] each
  at::Tensor decay, beta, gate;       // f [B T, P], b [B T, H], g [B T, P]
  std::array<at::Tensor, 3> conv_PW;  // the last number of a kernel meets the token itself
  at::Tensor A_log_H, dt_bias_P, gain_K;
  double decay_bound = 0, norm_eps = 0;
};

// By sequence, changed in place: each convolution's last W - 1 inputs [W - 1, P], and the states
// [H, K, K] in the dtype of the computation; contiguous.
struct DeltaAttentionStates {
  std::array<std::vector<void*>, 3> conv_inputs;
  std::vector<void*> states;
};

// Whether `delta_attention` can: nothing is recorded, and the device has a function for it.
bool has_delta_attention(const DeltaAttentionInputs& inputs);

// y [B T, P]. B is the number of states. Throws Error where tensors are on different devices.
at::Tensor delta_attention(const DeltaAttentionInputs& inputs, const DeltaAttentionStates& kept);

// What is kept as tensors: [B, W - 1, P] each, and [B, H, K, K]. Undefined: zeros.
struct DeltaAttentionKept {
  std::array<at::Tensor, 3> conv_inputs;
  at::Tensor states;
};
struct DeltaAttentionOutput {
  at::Tensor y;
  DeltaAttentionKept kept;
};

// The same composed of operations on tensors: any device and dtype, differentiable.
DeltaAttentionOutput delta_attention_composed(const DeltaAttentionInputs& inputs, int64_t sequences,
                                              const DeltaAttentionKept& before);
// And where the states lie.
at::Tensor delta_attention_composed(const DeltaAttentionInputs& inputs,
                                    const DeltaAttentionStates& kept);

// What each device has for it.
using DeltaAttentionFunction = at::Tensor(const DeltaAttentionInputs& inputs,
                                          const DeltaAttentionStates& kept);
extern DeviceTable<DeltaAttentionFunction> delta_attention_table;

}  // namespace attnres
