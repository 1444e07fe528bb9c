#include "attnres/ops/operation_problems.h"
#include "attnres/ops/rotary/reference.h"
#include "attnres/ops/rotary/rotary.h"

namespace attnres {
namespace {

using problems::add_row;
using problems::row;
using problems::Tensors;
using problems::zeros_like;

constexpr double kTheta = 10000;

// Input: heads [1, tokens, 2, width].
OperationProblem rotary_problem(int64_t tokens, int64_t width) {
  constexpr int64_t kHeads = 2;
  DrawnInputs draw("rotary");
  OperationProblem problem;
  problem.inputs = {draw.rows({1, tokens, kHeads, width})};
  problem.compute = [=](const Tensors& in) -> Tensors {
    return {apply_rotary(
        in[0], rotary_table(0, tokens, rotary_frequencies(width, kTheta), in[0].scalar_type()))};
  };
  problem.reference = [](const Tensors& in, const Tensors& gradients) {
    const Tensors all = zeros_like({in[0], in[0]});
    for (int64_t i = 0; i < in[0].numel() / in[0].size(-1); ++i) {
      const int64_t token = i / kHeads;
      const auto position = static_cast<double>(token);
      add_row(all[0], i, reference::rotary(row(in[0], i), position, kTheta));
      add_row(all[1], i, reference::rotary(row(gradients[0], i), -position, kTheta));
    }
    return all;
  };
  return problem;
}

}  // namespace

std::vector<OperationProblems> rotary_problems() {
  const ErrorBounds bounds = {2e-6, 4e-15, 8e-3};
  return {problems::of_widths("rotary", {2, 4, 6, 14, 16, 32, 34, 64, 66, 128, 256}, rotary_problem,
                              bounds, bounds)};
}

}  // namespace attnres
