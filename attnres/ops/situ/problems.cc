#include "attnres/ops/operation_problems.h"
#include "attnres/ops/situ/situ.h"

namespace attnres {
namespace {

using problems::Tensors;

// Inputs: gate, up. Results: with a bound for up, and without.
OperationProblem situ_problem(int64_t tokens, int64_t width) {
  constexpr double kGateBound = 4, kUpBound = 25;
  DrawnInputs draw("situ");
  OperationProblem problem;
  problem.inputs = {draw.normal({tokens, width}, 5), draw.normal({tokens, width}, 30)};
  problem.compute = [](const Tensors& in) -> Tensors {
    return {situ(in[0], in[1], kGateBound, kUpBound), situ(in[0], in[1], kGateBound, 0)};
  };
  problem.formula = [](const Tensors& in) -> Tensors {
    return {situ_composed(in[0], in[1], kGateBound, kUpBound),
            situ_composed(in[0], in[1], kGateBound, 0)};
  };
  return problem;
}

}  // namespace

std::vector<OperationProblems> situ_problems() {
  // Gradients are sums over both results.
  return {problems::of_widths("SiTU", problems::kWidths, situ_problem, {1e-5, 1e-12, 8e-3},
                              ErrorBounds{1e-5, 1e-12, 1.6e-2})};
}

}  // namespace attnres
