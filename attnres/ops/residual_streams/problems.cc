#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include "attnres/ops/operation_problems.h"
#include "attnres/ops/residual_streams/residual_streams.h"

namespace attnres {
namespace {

using at::Tensor;
using problems::Tensors;

// Inputs: streams H [T, m, D], a and b [T, m], y [T, D] and, where streams mix, A [T, m, m].
// Results: what is read, and the streams that are written.
OperationProblem residual_streams_problem(int64_t tokens, int64_t streams, int64_t width,
                                          bool mixing) {
  DrawnInputs draw("residual streams");
  OperationProblem problem;
  problem.inputs = {draw.rows({tokens, streams, width}), draw.rows({tokens, streams}),
                    draw.rows({tokens, streams}), draw.rows({tokens, width})};
  if (mixing) problem.inputs.push_back(draw.rows({tokens, streams, streams}));
  problem.compute = [mixing](const Tensors& in) -> Tensors {
    const Tensor mix = mixing ? in[4] : Tensor();
    return {read_streams(in[0], in[1]), write_streams(in[0], {mix, in[2], in[3]})};
  };
  problem.formula = [mixing](const Tensors& in) -> Tensors {
    const Tensor mixed = mixing ? in[4].matmul(in[0]) : in[0];
    return {(in[1].unsqueeze(-1) * in[0]).sum(1), mixed + in[2].unsqueeze(-1) * in[3].unsqueeze(1)};
  };
  return problem;
}

}  // namespace

std::vector<OperationProblems> residual_streams_problems() {
  // The gradients of the streams by what is read and by what is written are rounded one by one.
  const ErrorBounds bounds = {3e-5, 3e-12, 3e-2};
  OperationProblems operation = {.name = "residual streams",
                                 .forward = bounds,
                                 .backward = bounds,
                                 .large = residual_streams_problem(600, 4, 130, /*mixing=*/true)};
  for (const int64_t streams : {1, 2, 5, 16, 4}) {
    for (const int64_t width : {1, 3, 8, 64, 100, 17}) {
      for (const bool mixing : {false, true}) {
        operation.problems.push_back(residual_streams_problem(5, streams, width, mixing));
      }
    }
  }
  return {operation};
}

}  // namespace attnres
