#include <ATen/core/Tensor.h>

#include "attnres/ops/matmul/weight_gradient.h"
#include "attnres/ops/operation_problems.h"
#include "attnres/ops/small_products/small_products.h"

namespace attnres {
namespace {

// Inputs: g [M, N], x [M, K] and a sum.
OperationProblem weight_gradient_problem(int64_t M, int64_t N, int64_t K) {
  return problems::product_problem(
      "weight gradient", {{{M, N}, {M, K}, {N, K}}}, weight_gradient_in_blocks,
      [](const at::Tensor& g, const at::Tensor& x) { return g.t().mm(x); });
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
