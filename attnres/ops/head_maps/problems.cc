#include <ATen/core/Tensor.h>

#include "attnres/ops/head_maps/head_maps.h"
#include "attnres/ops/operation_problems.h"

namespace attnres {
namespace {

using at::Tensor;
using problems::Tensors;

// Inputs: W [H, N, K], x [T, H, K] and, for the transposed maps, x [T, H, N]. Results: of both.
OperationProblem head_maps_problem(int64_t T, int64_t H, int64_t N, int64_t K) {
  DrawnInputs draw("head maps");
  OperationProblem problem;
  problem.inputs = {draw.normal({H, N, K}, 1), draw.rows({T, H, K}), draw.rows({T, H, N})};
  problem.compute = [](const Tensors& in) -> Tensors {
    return {head_maps(in[1], in[0]), transposed_head_maps(in[2], in[0])};
  };
  problem.formula = [](const Tensors& in) -> Tensors {
    const auto maps = [](const Tensor& x_THK, const Tensor& w_HKN) {
      return x_THK.transpose(0, 1).matmul(w_HKN).transpose(0, 1);
    };
    return {maps(in[1], in[0].transpose(1, 2)), maps(in[2], in[0])};
  };
  return problem;
}

}  // namespace

std::vector<OperationProblems> head_maps_problems() {
  return {{.name = "head maps",
           .forward = {1e-5, {}, 8e-3},
           .problems = {head_maps_problem(1, 1, 1, 1), head_maps_problem(3, 2, 5, 37),
                        head_maps_problem(8, 2, 128, 512), head_maps_problem(1, 4, 131, 64),
                        head_maps_problem(2, 3, 300, 9)},
           .large = head_maps_problem(8, 6, 128, 512)}};
}

}  // namespace attnres
