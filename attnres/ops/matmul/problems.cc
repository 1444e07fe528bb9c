#include <ATen/ATen.h>

#include "attnres/ops/matmul/weight_gradient.h"
#include "attnres/ops/operation_problems.h"
#include "attnres/ops/small_products/small_products.h"

namespace attnres {
namespace {

using at::Tensor;
using problems::Tensors;

// Inputs: g [M, N], x [M, K], a sum [N, K]. Results: g^T x, and the sum with it.
OperationProblem weight_gradient_problem(int64_t M, int64_t N, int64_t K) {
  DrawnInputs draw("weight gradient");
  OperationProblem problem;
  problem.inputs = {draw.rows({M, N}), draw.rows({M, K}), draw.rows({N, K})};
  problem.compute = [](const Tensors& in) -> Tensors {
    const Tensor added = in[2].to(at::kFloat, false, /*copy=*/true);
    const Tensor alone = at::empty_like(added);
    weight_gradient_in_blocks(in[0], in[1], alone, /*add=*/false);
    weight_gradient_in_blocks(in[0], in[1], added, /*add=*/true);
    return {alone, added};
  };
  problem.formula = [](const Tensors& in) -> Tensors {
    const Tensor gradient = in[0].t().mm(in[1]);
    return {gradient, in[2] + gradient};
  };
  return problem;
}

}  // namespace

std::vector<OperationProblems> matmul_problems() {
  return {{.name = "weight gradient",
           .forward = {1e-5, {}, 1e-5},  // sums are float32
           .problems = {weight_gradient_problem(1, 7, 34), weight_gradient_problem(2, 70, 96),
                        weight_gradient_problem(65, 70, 300), weight_gradient_problem(1025, 70, 30),
                        weight_gradient_problem(130, 33, 96)},
           .large = weight_gradient_problem(600, 200, 300),
           .on_this_processor = has_small_products}};
}

}  // namespace attnres
