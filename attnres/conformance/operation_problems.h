// The operations that have kernels, and the gated delta rule by chunks too, each with inputs of
// many shapes and what its formula gives for them in long double.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "attnres/support/random.h"

namespace attnres {

// For inputs of one shape: what a kernel computes, and the same by the formula.
struct OperationProblem {
  std::vector<at::Tensor> inputs;  // float64
  std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)> compute;
  // The results, then the gradients of the inputs for these gradients of the results.
  std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs,
                                        const std::vector<at::Tensor>& gradients)>
      reference;
};

struct ErrorBounds {
  double float32, float64, bfloat16;
};

struct OperationProblems {
  std::string name;
  ErrorBounds forward;
  std::optional<ErrorBounds> backward;  // none: its gradients are not compared
  std::vector<OperationProblem> problems;
  OperationProblem large;  // enough tokens for several threads; has no reference
};

// Numbers for inputs, the same every time for a name.
class DrawnInputs {
 public:
  explicit DrawnInputs(std::string_view name) : random_(1, name) {}

  at::Tensor normal(at::IntArrayRef shape, double scale);
  at::Tensor uniform(at::IntArrayRef shape);  // from 0 to 1
  at::Tensor rows(at::IntArrayRef shape);     // tokens, as sublayers write them
  at::Tensor gain(int64_t width);
  // Of this length: the standard deviation of its scores.
  at::Tensor query(int64_t width, double length);

 private:
  at::Tensor fill(at::IntArrayRef shape, const std::function<double(uint64_t)>& value);

  RandomStream random_;
  uint64_t counter_ = 0;
};

std::vector<OperationProblems> all_operation_problems();

}  // namespace attnres
