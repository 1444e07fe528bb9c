#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include "attnres/ops/operation_problems.h"
#include "attnres/ops/sinkhorn/sinkhorn.h"

namespace attnres {
namespace {

using at::Tensor;
using problems::Tensors;

// Input: logits. The formula divides the matrices, which float64 holds where logits are moderate.
OperationProblem sinkhorn_problem(int64_t tokens, int64_t size, int64_t rounds) {
  DrawnInputs draw("sinkhorn");
  OperationProblem problem;
  problem.inputs = {draw.rows({tokens, size, size})};
  problem.compute = [rounds](const Tensors& in) -> Tensors { return {sinkhorn(in[0], rounds)}; };
  problem.formula = [rounds](const Tensors& in) -> Tensors {
    Tensor A = in[0].exp();
    for (int64_t round = 0; round < rounds; ++round) {
      A = A / A.sum(1, /*keepdim=*/true);
      A = A / A.sum(2, /*keepdim=*/true);
    }
    return {A};
  };
  return problem;
}

}  // namespace

std::vector<OperationProblems> sinkhorn_problems() {
  const ErrorBounds bounds = {3e-5, 3e-12, {}};
  OperationProblems operation = {.name = "Sinkhorn",
                                 .forward = bounds,
                                 .backward = bounds,
                                 .large = sinkhorn_problem(2000, 4, 20)};
  for (const int64_t tokens : {1, 5, 16, 37}) {
    operation.problems.push_back(sinkhorn_problem(tokens, 2, 1));
    operation.problems.push_back(sinkhorn_problem(tokens, 3, 2));
    operation.problems.push_back(sinkhorn_problem(tokens, 4, 20));
    operation.problems.push_back(sinkhorn_problem(tokens, 16, 4));
    operation.problems.push_back(sinkhorn_problem(tokens, 5, 3));
  }
  return {operation};
}

}  // namespace attnres
