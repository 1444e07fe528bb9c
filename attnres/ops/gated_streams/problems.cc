#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sigmoid.h>

#include "attnres/ops/gated_streams/gated_streams.h"
#include "attnres/ops/operation_problems.h"

namespace attnres {
namespace {

using at::Tensor;
using problems::Tensors;

constexpr double kEps = 0.01;  // large: it matters where it stands

// Inputs: streams H [T, n, D], g [n, D], A [K, n D], U [n D, K] and, where something is written,
// W [n, n D]. Results: x, and what is written by.
OperationProblem gated_streams_problem(int64_t tokens, int64_t streams, int64_t width, int64_t rank,
                                       bool writing) {
  DrawnInputs draw("gated streams");
  const int64_t C = streams * width;
  OperationProblem problem;
  problem.inputs = {draw.rows({tokens, streams, width}), draw.rows({streams, width}),
                    draw.normal({rank, C}, 1), draw.normal({C, rank}, 1)};
  if (writing) problem.inputs.push_back(draw.normal({streams, C}, 1));
  problem.compute = [writing](const Tensors& in) -> Tensors {
    const GatedStreamsMaps maps = {in[1], in[2], in[3], writing ? in[4] : Tensor()};
    const GatedStreamsRead read = read_gated_streams(in[0], maps, kEps);
    Tensors results = {read.x_TD};
    if (writing) results.push_back(read.write_TN);
    return results;
  };
  problem.formula = [writing](const Tensors& in) -> Tensors {
    const Tensor rho = at::rsqrt(in[0].square().mean(-1, /*keepdim=*/true) + kEps);
    const Tensor normed = in[1] * in[0] * rho;
    const Tensor z = normed.flatten(1) / static_cast<double>(in[0].size(1));
    const Tensor down = z.matmul(in[2].t());
    const Tensor gates = at::sigmoid((down * at::sigmoid(down)).matmul(in[3].t()));
    const Tensor x = (gates.view_as(normed) * normed).mean(1);
    return writing ? Tensors{x, at::sigmoid(z.matmul(in[4].t()))} : Tensors{x};
  };
  return problem;
}

}  // namespace

std::vector<OperationProblems> gated_streams_problems() {
  OperationProblems operation = {.name = "gated streams",
                                 .forward = {3e-5, 3e-12, 3e-2},
                                 .backward = ErrorBounds{1e-4, 1e-11, 5e-2},
                                 .large = gated_streams_problem(700, 4, 130, 5, /*writing=*/true)};
  for (const int64_t streams : {1, 2, 4, 5, 16}) {
    for (const int64_t width : {1, 3, 17, 64, 100}) {
      for (const bool writing : {false, true}) {
        operation.problems.push_back(gated_streams_problem(5, streams, width, /*rank=*/3, writing));
      }
    }
  }
  return {operation};
}

}  // namespace attnres
