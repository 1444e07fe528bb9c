#include <ATen/ATen.h>

#include <cmath>

#include "attnres/ops/causal_attention/causal_attention.h"
#include "attnres/ops/operation_problems.h"
#include "attnres/ops/small_products/small_products.h"

namespace attnres {
namespace {

using at::Tensor;
using problems::Tensors;

struct CausalSizes {
  int64_t B, T, H, G, K;
  int64_t earlier = 0;  // keys before the first query's
  int64_t window = 0;
};

Tensor causal_attention_formula(const Tensors& in, int64_t window) {
  const Tensor &q_BTHK = in[0], &k_BNGK = in[1], &v_BNGK = in[2];
  const int64_t T = q_BTHK.size(1), N = k_BNGK.size(1), group = q_BTHK.size(2) / k_BNGK.size(2);
  const auto by_head = [&](const Tensor& x) {
    return x.repeat_interleave(group, 2).transpose(1, 2);
  };
  const Tensor scores = q_BTHK.transpose(1, 2).matmul(by_head(k_BNGK).transpose(2, 3)) /
                        std::sqrt(static_cast<double>(q_BTHK.size(3)));
  Tensor seen = at::ones({T, N}, at::kBool).tril(N - T);
  if (window > 0) seen = seen.triu(N - T - window + 1);
  const Tensor weights = scores.masked_fill(seen.logical_not(), -INFINITY).softmax(-1);
  return weights.matmul(by_head(v_BNGK)).transpose(1, 2);
}

// Inputs: q, k, v.
OperationProblem causal_attention_problem(const CausalSizes& s) {
  DrawnInputs draw("causal attention");
  const int64_t N = s.T + s.earlier;
  OperationProblem problem;
  problem.inputs = {draw.normal({s.B, s.T, s.H, s.K}, 1), draw.normal({s.B, N, s.G, s.K}, 1),
                    draw.normal({s.B, N, s.G, s.K}, 1)};
  problem.compute = [window = s.window](const Tensors& in) -> Tensors {
    return {tiled_causal_attention(in[0], in[1], in[2], window)};
  };
  problem.formula = [window = s.window](const Tensors& in) -> Tensors {
    return {causal_attention_formula(in, window)};
  };
  return problem;
}

}  // namespace

std::vector<OperationProblems> causal_attention_problems() {
  // The gradients of scores are small differences of numbers near 1.
  OperationProblems operation = {
      .name = "causal attention",
      .forward = {1e-5, {}, 2e-2},
      .backward = ErrorBounds{5e-5, {}, 1e-1},
      .large = causal_attention_problem({.B = 2, .T = 200, .H = 4, .G = 2, .K = 16}),
      .on_this_processor = has_small_products};
  // Windows shorter and longer than a block of queries and a tile of keys too.
  for (const CausalSizes& sizes :
       {CausalSizes{2, 1, 2, 1, 2}, CausalSizes{1, 3, 3, 3, 6}, CausalSizes{1, 64, 2, 2, 64},
        CausalSizes{1, 65, 4, 1, 10}, CausalSizes{1, 577, 2, 1, 16},
        CausalSizes{2, 70, 4, 2, 6, 0, 1}, CausalSizes{1, 200, 2, 1, 8, 0, 7},
        CausalSizes{1, 130, 2, 1, 4, 700, 511}, CausalSizes{2, 63, 4, 2, 8},
        CausalSizes{2, 70, 4, 2, 6, 13}}) {
    operation.problems.push_back(causal_attention_problem(sizes));
  }
  return {operation};
}

}  // namespace attnres
