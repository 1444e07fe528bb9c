// The gated delta rule with a decay per channel (Kimi Delta Attention, arXiv 2510.26692): a state S
// [K, V] per head that decays, is corrected towards v where k points, and is read by q. For every
// token, with a = e^log_decay,
//   S <- diag(a) S
//   S <- S + beta k (v - k^T S)^T
//   o = S^T q
//
// Two forms of the same function, each computed in float64 for float64 inputs and in float32
// otherwise. Decays from 0 to 1 (logarithms from -inf to 0) in any mixture cost no accuracy: they
// are only ever multiplied. Largest error against float64 for normalised keys and beta in (0, 1),
// relative to the largest magnitude: 1e-5 in float32, 1e-12 in float64. Gradients 2e-5 and 1e-12;
// that of log_decay, a difference of terms as large as q's gradient, relative to it.
//
// In Python: torch.ops.attnres.gated_delta_rule(q, k, v, log_decay, beta, state), state a tensor or
// None.
#pragma once

#include <ATen/core/Tensor.h>

namespace attnres {

// All of one device; of any floating dtypes.
struct GatedDeltaRuleInputs {
  at::Tensor q, k;        // [B, T, H, K], with T, K >= 1
  at::Tensor v;           // [B, T, H, V]
  at::Tensor log_decay;   // [B, T, H, K], natural logarithm, 0 or less
  at::Tensor beta;        // [B, T, H]
  at::Tensor state = {};  // [B, H, K, V], before the first token; undefined: zeros
};

struct GatedDeltaRuleOutput {
  at::Tensor o;      // [B, T, H, V], of v's dtype
  at::Tensor state;  // [B, H, K, V], after the last token: float32, or float64 for float64
};

// Where no gradient is wanted, on the CPU, a kernel that goes token by token and keeps the state in
// the core's cache: for decoding and prompts of any length. Else by chunks of 32 tokens, composed
// of tensor operations, with a backward by hand: differentiable once; about 9 numbers per token,
// head and channel are kept beside the inputs. Throws Error, as the others do, naming the first
// input of a wrong shape.
GatedDeltaRuleOutput gated_delta_rule(const GatedDeltaRuleInputs& inputs);

// By chunks, whether or not a gradient is wanted.
GatedDeltaRuleOutput gated_delta_rule_chunked(const GatedDeltaRuleInputs& inputs);

// Token by token, composed of tensor operations. Differentiable any number of times.
GatedDeltaRuleOutput gated_delta_rule_recurrent(const GatedDeltaRuleInputs& inputs);

}  // namespace attnres
