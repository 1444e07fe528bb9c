#include "attnres/ops/causal_attention/causal_attention.h"
#include "attnres/ops/operation_problems.h"
#include "attnres/ops/small_products/small_products.h"

namespace attnres {
namespace {

using problems::Tensors;

struct CausalSizes {
  int64_t B, T, H, G, K;
  int64_t earlier = 0;  // keys before the first query's
  int64_t window = 0;
};

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
    return {causal_attention_composed(in[0], in[1], in[2], window)};
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
