#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/log1p.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>

#include "attnres/ops/delta_attention/delta_attention.h"
#include "attnres/ops/gated_delta_rule/gated_delta_rule.h"
#include "attnres/ops/operation_problems.h"
#include "attnres/ops/tensors.h"

namespace attnres {
namespace {

using at::Tensor;
using problems::Tensors;

// B sequences of T tokens, H heads of K channels, convolutions over W tokens.
struct DeltaSizes {
  int64_t B, T, H, K, W;
  double decay_bound = 0;
};

constexpr double kOutputNormEps = 0.1;  // large, so that its term shows

// Where the inputs stand; of the three convolutions one after another.
enum DeltaInput : size_t {
  kProjected = 0,
  kDecay = 3,
  kBeta,
  kGate,
  kKernels,
  kLogRate = 9,
  kStepBias,
  kOutputGain,
  kConvInputs,
  kStates = 15
};

// Results: y, and what is kept, the convolutions' last inputs and the states.
Tensors run_delta_attention(const DeltaSizes& s, const Tensors& in) {
  Tensors kept;
  for (size_t i = 0; i < 3; ++i) kept.push_back(in[kConvInputs + i].clone());
  kept.push_back(in[kStates].to(compute_dtype(in[kStates]), false, /*copy=*/true));
  DeltaAttentionStates states;
  for (int64_t b = 0; b < s.B; ++b) {
    for (size_t i = 0; i < 3; ++i) states.conv_inputs[i].push_back(kept[i][b].data_ptr());
    states.states.push_back(kept[3][b].data_ptr());
  }
  const Tensor y =
      delta_attention({.inputs = {in[kProjected], in[kProjected + 1], in[kProjected + 2]},
                       .decay = in[kDecay],
                       .beta = in[kBeta],
                       .gate = in[kGate],
                       .conv_PW = {in[kKernels], in[kKernels + 1], in[kKernels + 2]},
                       .A_log_H = in[kLogRate],
                       .dt_bias_P = in[kStepBias],
                       .gain_K = in[kOutputGain],
                       .decay_bound = s.decay_bound,
                       .norm_eps = kOutputNormEps},
                      states);
  return {y, kept[0], kept[1], kept[2], kept[3]};
}

Tensors delta_attention_formula(const DeltaSizes& s, const Tensors& in) {
  const auto heads = [&](const Tensor& x) { return x.reshape({s.B, s.T, s.H, s.K}); };
  const auto unit = [](const Tensor& x) { return x / (x.square().sum(-1, true) + 1e-6).sqrt(); };
  Tensors convolved, kept;
  for (size_t i = 0; i < 3; ++i) {
    const Tensor x_BTP = in[kProjected + i].view({s.B, s.T, s.H * s.K});
    const Tensor all = at::cat({in[kConvInputs + i], x_BTP}, 1);
    Tensor sum = at::zeros_like(x_BTP);
    for (int64_t w = 0; w < s.W; ++w) {
      sum = sum + all.narrow(1, w, s.T) * in[kKernels + i].select(1, w);
    }
    convolved.push_back(heads(sum * sum.sigmoid()));
    kept.push_back(all.narrow(1, s.T, s.W - 1));
  }
  const Tensor rate_H1 = in[kLogRate].exp().unsqueeze(1);
  const Tensor step = heads(in[kDecay]) + in[kStepBias].view({s.H, s.K});
  const Tensor log_decay = s.decay_bound < 0 ? s.decay_bound * at::sigmoid(rate_H1 * step)
                                             : -rate_H1 * at::log1p(step.exp());
  const auto [o, state] =
      gated_delta_rule_recurrent({.q = unit(convolved[0]) / std::sqrt(static_cast<double>(s.K)),
                                  .k = unit(convolved[1]),
                                  .v = convolved[2],
                                  .log_decay = log_decay,
                                  .beta = in[kBeta].view({s.B, s.T, s.H}).sigmoid(),
                                  .state = in[kStates]});
  const Tensor normed = o / (o.square().mean(-1, true) + kOutputNormEps).sqrt() * in[kOutputGain];
  const Tensor y = normed * heads(in[kGate]).sigmoid();
  return {y.reshape({s.B * s.T, s.H * s.K}), kept[0], kept[1], kept[2], state};
}

OperationProblem delta_attention_problem(const DeltaSizes& s) {
  DrawnInputs draw("delta attention");
  const int64_t rows = s.B * s.T, P = s.H * s.K;
  OperationProblem problem;
  Tensors& in = problem.inputs;
  for (int i = 0; i < 3; ++i) in.push_back(draw.rows({rows, P}));
  in.push_back(draw.rows({rows, P}));
  in.push_back(draw.rows({rows, s.H}));
  in.push_back(draw.rows({rows, P}));
  for (int i = 0; i < 3; ++i) in.push_back(draw.normal({P, s.W}, 0.5));
  in.push_back(draw.normal({s.H}, 0.5) - 1);  // rates below one: earlier tokens are seen
  in.push_back(draw.normal({P}, 0.5));
  in.push_back(draw.gain(s.K));
  for (int i = 0; i < 3; ++i) in.push_back(draw.rows({s.B, s.W - 1, P}));
  in.push_back(draw.rows({s.B, s.H, s.K, s.K}));
  problem.compute = [s](const Tensors& inputs) { return run_delta_attention(s, inputs); };
  problem.formula = [s](const Tensors& inputs) { return delta_attention_formula(s, inputs); };
  return problem;
}

}  // namespace

std::vector<OperationProblems> delta_attention_problems() {
  OperationProblems operation = {
      .name = "delta attention",
      .forward = {2e-5, 1e-11, 8e-3},
      .large = delta_attention_problem({.B = 2, .T = 64, .H = 4, .K = 64, .W = 4})};
  for (const DeltaSizes& sizes :
       {DeltaSizes{1, 1, 1, 3, 4}, DeltaSizes{2, 5, 2, 3, 4}, DeltaSizes{1, 1, 3, 8, 4, -5},
        DeltaSizes{3, 33, 1, 16, 7}, DeltaSizes{2, 70, 1, 72, 4, -5},
        DeltaSizes{2, 40, 2, 17, 2, -5}}) {
    operation.problems.push_back(delta_attention_problem(sizes));
  }
  return {operation};
}

}  // namespace attnres
