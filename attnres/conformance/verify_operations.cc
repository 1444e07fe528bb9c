#include "attnres/conformance/verify_operations.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>

#include "attnres/conformance/operation_problems.h"
#include "attnres/ops/depth_attention/depth_attention.h"
#include "attnres/ops/instruction_sets.h"

namespace attnres {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

struct StorageType {
  const char* name;
  at::ScalarType dtype;
  double ErrorBounds::*bound;
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
  const Tensor values = actual.detach().to(at::kDouble).contiguous();
  const double *is = values.data_ptr<double>(), *should = expected.data_ptr<double>();
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
  Tensors run() const {
    Tensors leaves;
    for (const Tensor& input : inputs_) {
      leaves.push_back(input.detach().requires_grad_(with_backward_));
    }
    Tensors all = problem_.compute(leaves);
    if (!with_backward_) return all;
    torch::autograd::backward(all, gradients_);
    for (const Tensor& leaf : leaves) {
      all.push_back(leaf.grad().defined() ? leaf.grad() : at::zeros_like(leaf));
    }
    return all;
  }

  Tensors expected() const {
    return problem_.reference(rounded(inputs_, at::kDouble), rounded(gradients_, at::kDouble));
  }

  size_t num_results() const { return gradients_.size(); }

 private:
  const OperationProblem& problem_;
  bool with_backward_;
  Tensors inputs_, gradients_;
};

bool same_bits_for_any_threads(const Instance& instance, int threads) {
  Tensors first;
  bool same = true;
  for (int count = 1; count <= threads; ++count) {
    at::set_num_threads(count);
    const Tensors all = instance.run();
    if (first.empty()) first = all;
    same &= std::equal(all.begin(), all.end(), first.begin(),
                       [](const Tensor& a, const Tensor& b) { return at::equal(a, b); });
  }
  at::set_num_threads(threads);
  return same;
}

}  // namespace

Verification verify_operations(double bound_factor) {
  Verification verification = {.instruction_sets = depth_attention_instruction_sets(),
                               .threads = at::get_num_threads(),
                               .operations = {}};
  for (const OperationProblems& operation : all_operation_problems()) {
    for (const auto& [storage, dtype, bound] : kStorageTypes) {
      const bool with_backward = operation.backward.has_value();
      std::vector<Instance> instances;
      std::vector<Tensors> expected;
      std::vector<std::vector<double>> scales;
      for (const OperationProblem& problem : operation.problems) {
        instances.emplace_back(problem, dtype, with_backward);
        expected.push_back(instances.back().expected());
        const auto gradients = expected.back().begin() + instances.back().num_results();
        scales.push_back(magnitudes({expected.back().begin(), gradients}));
        for (const double scale : magnitudes({gradients, expected.back().end()})) {
          scales.back().push_back(scale);
        }
      }
      VerifiedOperation forward = {
          operation.name + ", forward", storage, operation.forward.*bound * bound_factor, {}};
      VerifiedOperation backward = {operation.name + ", backward", storage, 0, {}};
      for (const std::string& name : verification.instruction_sets) {
        const InstructionSet instruction_set(name);
        double errors[] = {0, 0};
        for (size_t i = 0; i < instances.size(); ++i) {
          const Tensors actual = instances[i].run();
          for (size_t k = 0; k < actual.size(); ++k) {
            double& error = errors[k < instances[i].num_results() ? 0 : 1];
            error = std::max(error, largest_error(actual[k], expected[i][k]) / scales[i][k]);
          }
        }
        forward.errors.push_back(errors[0]);
        backward.errors.push_back(errors[1]);
      }
      forward.same_bits =
          same_bits_for_any_threads({operation.large, dtype, with_backward}, verification.threads);
      verification.operations.push_back(forward);
      if (!with_backward) continue;
      backward.bound = (*operation.backward).*bound * bound_factor;
      backward.same_bits = forward.same_bits;
      verification.operations.push_back(backward);
    }
  }
  return verification;
}

}  // namespace attnres
