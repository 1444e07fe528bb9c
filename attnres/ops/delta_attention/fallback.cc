#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sum.h>

#include <cmath>

#include "attnres/ops/composed.h"
#include "attnres/ops/delta_attention/delta_attention.h"
#include "attnres/ops/gated_delta_rule/gated_delta_rule.h"
#include "attnres/ops/rms_norm/rms_norm.h"
#include "attnres/ops/tensors.h"

namespace attnres {
namespace {

using at::Tensor;

constexpr double kHeadNormEps = 1e-6;

// Over time, each channel with its own kernel_PW, whose last number meets the token itself;
// `inputs` begin W - 1 tokens before the first result.
Tensor convolved(const Tensor& inputs_BTP, const Tensor& kernel_PW) {
  const int64_t W = kernel_PW.size(1), T = inputs_BTP.size(1) - W + 1;
  const std::vector<Tensor> taps = kernel_PW.unbind(1);
  Tensor y = inputs_BTP.narrow(1, 0, T) * taps[0];
  for (int64_t w = 1; w < W; ++w) y = at::addcmul(y, inputs_BTP.narrow(1, w, T), taps[w]);
  return y.to(inputs_BTP.scalar_type());
}

// Per head, of length one.
Tensor normalized(const Tensor& x_BTHK) {
  return x_BTHK * at::rsqrt(at::sum(x_BTHK.square(), -1, true) + kHeadNormEps);
}

// Tensors where the pointers point to.
std::vector<Tensor> where_kept(const std::vector<void*>& pointers, at::IntArrayRef sizes,
                               const at::TensorOptions& options) {
  std::vector<Tensor> tensors;
  for (void* pointer : pointers) tensors.push_back(at::from_blob(pointer, sizes, options));
  return tensors;
}

}  // namespace

DeltaAttentionOutput delta_attention_composed(const DeltaAttentionInputs& in, int64_t sequences,
                                              const DeltaAttentionKept& before) {
  note_composed("delta attention", in.gate);
  const int64_t T = in.gate.size(0) / sequences, H = in.beta.size(1), W = in.conv_PW[0].size(1);
  const auto batch = [&](const Tensor& x) { return x.unflatten(0, {sequences, T}); };
  const auto heads = [&](const Tensor& x) { return x.unflatten(-1, {H, -1}); };
  DeltaAttentionOutput out;
  std::array<Tensor, 3> qkv;
  for (size_t i = 0; i < 3; ++i) {
    const Tensor x_BTP = batch(in.inputs[i]), &earlier = before.conv_inputs[i];
    const Tensor inputs = earlier.defined() ? at::cat({earlier, x_BTP}, 1)
                                            : at::constant_pad_nd(x_BTP, {0, 0, W - 1, 0});
    out.kept.conv_inputs[i] = inputs.narrow(1, T, W - 1);
    qkv[i] = heads(at::silu(convolved(inputs, in.conv_PW[i])));
  }
  const at::ScalarType wide = compute_dtype(in.gate);
  const Tensor rate_H1 = in.A_log_H.to(wide).exp().unsqueeze(1);
  const Tensor step = heads(batch(in.decay.to(wide) + in.dt_bias_P.to(wide)));
  const Tensor log_decay = in.decay_bound < 0 ? in.decay_bound * at::sigmoid(rate_H1 * step)
                                              : -rate_H1 * at::softplus(step);
  const auto K = static_cast<double>(qkv[0].size(-1));
  const auto [o_BTHK, states] = gated_delta_rule({.q = normalized(qkv[0].to(wide)) / std::sqrt(K),
                                                  .k = normalized(qkv[1].to(wide)),
                                                  .v = qkv[2],
                                                  .log_decay = log_decay,
                                                  .beta = at::sigmoid(batch(in.beta)),
                                                  .state = before.states});
  out.kept.states = states;
  const Tensor gates = heads(batch(in.gate.sigmoid()));
  out.y = (rms_norm(o_BTHK, in.gain_K, in.norm_eps) * gates).flatten(2).flatten(0, 1);
  return out;
}

Tensor delta_attention_composed(const DeltaAttentionInputs& in, const DeltaAttentionStates& kept) {
  const int64_t P = in.gate.size(1), H = in.beta.size(1), K = P / H, W = in.conv_PW[0].size(1);
  const auto options = in.gate.options();
  std::array<std::vector<Tensor>, 3> conv_inputs;
  DeltaAttentionKept before;
  for (size_t i = 0; i < 3; ++i) {
    conv_inputs[i] = where_kept(kept.conv_inputs[i], {W - 1, P}, options);
    before.conv_inputs[i] = at::stack(conv_inputs[i]);
  }
  const std::vector<Tensor> states =
      where_kept(kept.states, {H, K, K}, options.dtype(compute_dtype(in.gate)));
  before.states = at::stack(states);
  const DeltaAttentionOutput out =
      delta_attention_composed(in, static_cast<int64_t>(states.size()), before);
  for (size_t b = 0; b < states.size(); ++b) {
    const auto own = static_cast<int64_t>(b);
    for (size_t i = 0; i < 3; ++i) conv_inputs[i][b].copy_(out.kept.conv_inputs[i][own]);
    states[b].copy_(out.kept.states[own]);
  }
  return out.y;
}

}  // namespace attnres
