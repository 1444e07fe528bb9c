#include "attnres/conformance/verify_operations.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "attnres/ops/depth_attention/depth_attention.h"
#include "attnres/ops/instruction_sets.h"

namespace attnres {
namespace {

using at::Tensor;
using Tensors = OperationProblem::Tensors;

struct StorageType {
  const char* name;
  at::ScalarType dtype;
  std::optional<double> ErrorBounds::*bound;
};

constexpr StorageType kStorageTypes[] = {{"float32", at::kFloat, &ErrorBounds::float32},
                                         {"float64", at::kDouble, &ErrorBounds::float64},
                                         {"bfloat16", at::kBFloat16, &ErrorBounds::bfloat16}};

// What errors are relative to: the largest magnitude of the tensor, and a tenth of the largest of
// all `tensors` at least. The gradients of queries and gains are differences of terms as large as
// the others, and where a site has one source and no choice, zero.
std::vector<double> magnitudes(const Tensors& tensors) {
  std::vector<double> largest;
  for (const Tensor& tensor : tensors) largest.push_back(tensor.abs().max().item<double>());
  const double least = 0.1 * *std::max_element(largest.begin(), largest.end());
  for (double& magnitude : largest) magnitude = std::max(magnitude, least);
  return largest;
}

double largest_error(const Tensor& actual, const Tensor& expected) {
  const Tensor values = actual.detach().to(at::kDouble).contiguous(), right = expected.contiguous();
  const double *is = values.data_ptr<double>(), *should = right.data_ptr<double>();
  double error = 0;
  for (int64_t i = 0; i < expected.numel(); ++i) {
    if (!std::isfinite(is[i])) return INFINITY;
    error = std::max(error, std::abs(is[i] - should[i]));
  }
  return error;
}

Tensors rounded(const Tensors& tensors, at::ScalarType dtype) {
  Tensors list;
  for (const Tensor& tensor : tensors) list.push_back(tensor.to(dtype));
  return list;
}

// The results, then, if wanted, the gradients of the inputs for these gradients of the results.
Tensors run(const OperationProblem::Computation& compute, const Tensors& inputs,
            const Tensors& gradients, bool with_backward) {
  Tensors leaves;
  for (const Tensor& input : inputs) {
    leaves.push_back(input.detach().requires_grad_(with_backward));
  }
  Tensors all = compute(leaves);
  if (!with_backward) return all;
  torch::autograd::backward(all, gradients);
  for (const Tensor& leaf : leaves) {
    all.push_back(leaf.grad().defined() ? leaf.grad() : at::zeros_like(leaf));
  }
  return all;
}

// A problem in one storage type.
class Instance {
 public:
  Instance(const OperationProblem& problem, at::ScalarType dtype, bool with_backward)
      : problem_(problem), with_backward_(with_backward), inputs_(rounded(problem.inputs, dtype)) {
    DrawnInputs draw("gradients");
    for (const Tensor& result : problem.compute(inputs_)) {
      gradients_.push_back(draw.normal(result.sizes(), 1).to(dtype));
    }
  }

  // The results, then the gradients of the inputs.
  Tensors computed() const { return run(problem_.compute, inputs_, gradients_, with_backward_); }

  Tensors expected() const {
    const Tensors inputs = rounded(inputs_, at::kDouble),
                  gradients = rounded(gradients_, at::kDouble);
    return problem_.reference ? problem_.reference(inputs, gradients)
                              : run(problem_.formula, inputs, gradients, with_backward_);
  }

  size_t num_results() const { return gradients_.size(); }

 private:
  const OperationProblem& problem_;
  bool with_backward_;
  Tensors inputs_, gradients_;
};

// An instance, and what is right.
class Comparison {
 public:
  explicit Comparison(Instance instance)
      : instance_(std::move(instance)), expected_(instance_.expected()) {
    const auto gradients = expected_.begin() + static_cast<int64_t>(instance_.num_results());
    scales_ = magnitudes({expected_.begin(), gradients});
    if (gradients == expected_.end()) return;
    for (const double scale : magnitudes({gradients, expected_.end()})) scales_.push_back(scale);
  }

  // Raises the largest error of the results and that of the gradients.
  void raise(double& of_results, double& of_gradients) const {
    const Tensors actual = instance_.computed();
    for (size_t k = 0; k < actual.size(); ++k) {
      double& error = k < instance_.num_results() ? of_results : of_gradients;
      error = std::max(error, largest_error(actual[k], expected_[k]) / scales_[k]);
    }
  }

 private:
  Instance instance_;
  Tensors expected_;
  std::vector<double> scales_;
};

bool same_bits_for_any_threads(const Instance& instance, int threads) {
  Tensors first;
  bool same = true;
  for (int count = 1; count <= threads; ++count) {
    at::set_num_threads(count);
    const Tensors all = instance.computed();
    if (first.empty()) first = all;
    same &= std::equal(all.begin(), all.end(), first.begin(),
                       [](const Tensor& a, const Tensor& b) { return at::equal(a, b); });
  }
  at::set_num_threads(threads);
  return same;
}

// Fills in the errors of an operation in one storage type, and whether bits are the same.
void measure(const OperationProblems& operation, at::ScalarType dtype,
             const Verification& verification, VerifiedOperation& forward,
             VerifiedOperation& backward) {
  const bool with_backward = operation.backward.has_value();
  std::vector<Comparison> comparisons;
  for (const OperationProblem& problem : operation.problems) {
    comparisons.emplace_back(Instance(problem, dtype, with_backward));
  }
  for (const std::string& name : verification.instruction_sets) {
    const InstructionSet instruction_set(name);
    double &of_results = forward.errors.emplace_back(0),
           &of_gradients = backward.errors.emplace_back(0);
    for (const Comparison& comparison : comparisons) comparison.raise(of_results, of_gradients);
  }
  forward.same_bits = backward.same_bits =
      same_bits_for_any_threads({operation.large, dtype, with_backward}, verification.threads);
}

}  // namespace

Verification verify_operations(const std::vector<OperationProblems>& operations,
                               double bound_factor) {
  Verification verification = {.instruction_sets = depth_attention_instruction_sets(),
                               .threads = at::get_num_threads()};
  for (const OperationProblems& operation : operations) {
    for (const auto& [storage, dtype, bound] : kStorageTypes) {
      if (!(operation.forward.*bound)) continue;
      const bool with_backward = operation.backward.has_value();
      VerifiedOperation forward = {operation.name + ", forward", storage,
                                   *(operation.forward.*bound) * bound_factor};
      VerifiedOperation backward = {operation.name + ", backward", storage};
      if (with_backward) backward.bound = (*operation.backward.*bound).value() * bound_factor;
      if (operation.on_this_processor && !operation.on_this_processor(dtype)) {
        verification.skipped.push_back({forward.name, storage});
        if (with_backward) verification.skipped.push_back({backward.name, storage});
        continue;
      }
      measure(operation, dtype, verification, forward, backward);
      verification.operations.push_back(std::move(forward));
      if (with_backward) verification.operations.push_back(std::move(backward));
    }
  }
  return verification;
}

}  // namespace attnres
