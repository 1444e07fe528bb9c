// The gated delta rule by chunks of 32 tokens, composed of tensor operations, forward and backward
// without autograd. Inputs as gated_delta_rule.h has them: v of any floating dtype, all else in
// one, float32 or float64; with a state.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "attnres/ops/gated_delta_rule/gated_delta_rule.h"

namespace attnres {

struct ChunkedDeltaRule {
  at::Tensor o, state;
  std::vector<at::Tensor> saved;  // for the backward, where there will be one
};

ChunkedDeltaRule chunked_delta_rule(const GatedDeltaRuleInputs& inputs, bool for_backward);

// The gradients of the inputs, each in its input's dtype.
GatedDeltaRuleInputs chunked_delta_rule_backward(const GatedDeltaRuleInputs& inputs,
                                                 at::TensorList saved, const at::Tensor& grad_o,
                                                 const at::Tensor& grad_state);

// `saved` without values, for Meta functions.
std::vector<at::Tensor> allocate_chunked_saved(const GatedDeltaRuleInputs& inputs);

}  // namespace attnres
