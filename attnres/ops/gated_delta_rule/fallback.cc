#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/stack.h>

#include "attnres/ops/gated_delta_rule/gated_delta_rule.h"
#include "attnres/ops/gated_delta_rule/prepare.h"

namespace attnres {

using at::Tensor;

GatedDeltaRuleOutput gated_delta_rule_recurrent(const GatedDeltaRuleInputs& inputs) {
  GatedDeltaRuleInputs in = prepare_delta_rule(inputs);
  in.v = in.v.to(in.q.scalar_type());
  const int64_t B = in.v.size(0), T = in.v.size(1), H = in.v.size(2), V = in.v.size(3);
  // One [B H, 1, F] for each token.
  const auto tokens = [](const Tensor& x) {
    return x.transpose(0, 1).reshape({x.size(1), x.size(0) * x.size(2), 1, -1}).unbind(0);
  };
  const std::vector<Tensor> q = tokens(in.q), k = tokens(in.k), v = tokens(in.v),
                            decay = tokens(in.log_decay.exp()), beta = tokens(in.beta);
  Tensor state = in.state.reshape({B * H, -1, V});
  std::vector<Tensor> o;
  for (int64_t t = 0; t < T; ++t) {
    state = state * decay[t].transpose(1, 2);
    const Tensor correction = beta[t] * at::baddbmm(v[t], k[t], state, /*beta=*/1, /*alpha=*/-1);
    state = at::baddbmm(state, k[t].transpose(1, 2), correction);
    o.push_back(at::bmm(q[t], state));
  }
  return {at::stack(o).view({T, B, H, V}).transpose(0, 1).to(inputs.v.scalar_type()),
          state.view({B, H, -1, V})};
}

}  // namespace attnres
