#include "attnres/ops/operation_problems.h"
#include "attnres/ops/swiglu/reference.h"
#include "attnres/ops/swiglu/swiglu.h"

namespace attnres {
namespace {

using problems::Number;
using problems::Tensors;
using problems::zeros_like;

// Inputs: gate, up.
OperationProblem swiglu_problem(int64_t tokens, int64_t width) {
  DrawnInputs draw("swiglu");
  OperationProblem problem;
  problem.inputs = {draw.normal({tokens, width}, 4), draw.rows({tokens, width})};
  problem.compute = [](const Tensors& in) -> Tensors { return {swiglu(in[0], in[1])}; };
  problem.reference = [](const Tensors& in, const Tensors& gradients) {
    const Tensors all = zeros_like({in[0], in[0], in[0]});
    const double *gate = in[0].data_ptr<double>(), *up = in[1].data_ptr<double>();
    const double* dy = gradients[0].data_ptr<double>();
    for (int64_t i = 0; i < in[0].numel(); ++i) {
      const auto grad = reference::swiglu_backward<Number>(gate[i], up[i], dy[i]);
      const Number values[] = {reference::swiglu<Number>(gate[i], up[i]), grad.gate, grad.up};
      for (int k = 0; k < 3; ++k) all[k].data_ptr<double>()[i] = static_cast<double>(values[k]);
    }
    return all;
  };
  return problem;
}

}  // namespace

std::vector<OperationProblems> swiglu_problems() {
  const ErrorBounds bounds = {2e-6, 4e-15, 8e-3};
  return {problems::of_widths("SwiGLU", problems::kWidths, swiglu_problem, bounds, bounds)};
}

}  // namespace attnres
