#include "attnres/ops/operation_problems.h"
#include "attnres/ops/rms_norm/reference.h"
#include "attnres/ops/rms_norm/rms_norm.h"

namespace attnres {
namespace {

using problems::add_row;
using problems::joined;
using problems::Number;
using problems::row;
using problems::Tensors;
using problems::zeros_like;

// Large, so that its term shows, and gradients of one channel are not zero.
constexpr double kNormEps = 1;

// Inputs: state, pending output, gain. Results: the norm of their sum, and the sum.
OperationProblem add_rms_norm_problem(int64_t tokens, int64_t width) {
  DrawnInputs draw("rms norm");
  OperationProblem problem;
  problem.inputs = {draw.rows({tokens, width}), draw.rows({tokens, width}), draw.gain(width)};
  problem.compute = [](const Tensors& in) -> Tensors {
    const AddedAndNormalized result = add_rms_norm(in[0], in[1], in[2], kNormEps);
    return {result.normalized, result.sum};
  };
  problem.reference = [](const Tensors& in, const Tensors& gradients) {
    const Tensors results = zeros_like({in[0], in[0]}), grads = zeros_like(in);
    for (int64_t t = 0; t < in[0].size(0); ++t) {
      std::vector<Number> h = row(in[0], t);
      const std::vector<Number> pending = row(in[1], t), gain = row(in[2], 0);
      for (size_t k = 0; k < h.size(); ++k) h[k] += pending[k];
      add_row(results[0], t, reference::rms_norm(h, gain, kNormEps));
      add_row(results[1], t, h);
      const auto grad = reference::rms_norm_backward(h, gain, kNormEps, row(gradients[0], t));
      for (const int summand : {0, 1}) {
        add_row(grads[summand], t, grad.h_D);
        add_row(grads[summand], t, row(gradients[1], t));
      }
      add_row(grads[2], t, grad.gain_D);
    }
    return joined(results, grads);
  };
  return problem;
}

// Inputs: x, gain.
OperationProblem rms_norm_problem(int64_t tokens, int64_t width) {
  DrawnInputs draw("rms norm alone");
  OperationProblem problem;
  problem.inputs = {draw.rows({tokens, width}), draw.gain(width)};
  problem.compute = [](const Tensors& in) -> Tensors { return {rms_norm(in[0], in[1], kNormEps)}; };
  problem.reference = [](const Tensors& in, const Tensors& gradients) {
    const Tensors results = zeros_like({in[0]}), grads = zeros_like(in);
    for (int64_t t = 0; t < in[0].size(0); ++t) {
      const std::vector<Number> x = row(in[0], t), gain = row(in[1], 0);
      add_row(results[0], t, reference::rms_norm(x, gain, kNormEps));
      const auto grad = reference::rms_norm_backward(x, gain, kNormEps, row(gradients[0], t));
      add_row(grads[0], t, grad.h_D);
      add_row(grads[1], t, grad.gain_D);
    }
    return joined(results, grads);
  };
  return problem;
}

}  // namespace

std::vector<OperationProblems> rms_norm_problems() {
  // A gain's gradient is a sum over the tokens.
  const ErrorBounds bounds = {2e-6, 4e-15, 8e-3}, summed = {2e-6, 1e-14, 8e-3};
  return {problems::of_widths("RMSNorm", problems::kWidths, rms_norm_problem, bounds, summed),
          problems::of_widths("addition and RMSNorm", problems::kWidths, add_rms_norm_problem,
                              bounds, bounds)};
}

}  // namespace attnres
