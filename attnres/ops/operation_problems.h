// What `attnres verify` compares: of every operation that has kernels, inputs of many shapes, what
// it computes of them, and what its formula gives. Each folder of ops with a kernel has a
// problems.cc with its own, and a line in the list of operation_problems.cc.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "attnres/support/random.h"

namespace attnres {

// For inputs of one shape: what an operation computes, and the same by its formula, which is given
// in one of two ways.
struct OperationProblem {
  using Tensors = std::vector<at::Tensor>;
  using Computation = std::function<Tensors(const Tensors& inputs)>;
  using Reference = std::function<Tensors(const Tensors& inputs, const Tensors& gradients)>;

  Tensors inputs = {};  // float64
  Computation compute = {};
  // Made of tensor operations: computed in float64 and differentiated by autograd.
  Computation formula = {};
  // Number by number, in long double: the results, then, of an operation with a backward, the
  // gradients of the inputs for these gradients of the results.
  Reference reference = {};
};

// For each storage type the largest error, relative to the largest magnitude; of 0, the numbers are
// the same. None: the operation does not have the type.
struct ErrorBounds {
  std::optional<double> float32, float64, bfloat16;
};

struct OperationProblems {
  std::string name;
  ErrorBounds forward;
  std::optional<ErrorBounds> backward = {};  // none: its gradients are not compared
  std::vector<OperationProblem> problems = {};
  OperationProblem large = {};  // enough tokens for several threads; not compared with the formula
  // Whether this processor has the operation for numbers of this dtype; undefined: all have it.
  std::function<bool(at::ScalarType)> on_this_processor = {};
};

// Each in the problems.cc of its folder.
std::vector<OperationProblems> causal_attention_problems();
std::vector<OperationProblems> delta_attention_problems();
std::vector<OperationProblems> depth_attention_problems();
std::vector<OperationProblems> depth_scores_problems();
std::vector<OperationProblems> gated_delta_rule_problems();
std::vector<OperationProblems> gated_streams_problems();
std::vector<OperationProblems> head_maps_problems();
std::vector<OperationProblems> matmul_problems();
std::vector<OperationProblems> packed_weight_problems();
std::vector<OperationProblems> paged_attention_problems();
std::vector<OperationProblems> residual_streams_problems();
std::vector<OperationProblems> rms_norm_problems();
std::vector<OperationProblems> rotary_problems();
std::vector<OperationProblems> sinkhorn_problems();
std::vector<OperationProblems> situ_problems();
std::vector<OperationProblems> small_products_problems();
std::vector<OperationProblems> swiglu_problems();

// A folder of attnres/ops, and the problems of the operations in it.
struct OperationFolder {
  std::string_view name;
  std::vector<OperationProblems> (*problems)();
};

const std::vector<OperationFolder>& operation_folders();
// Those of all folders.
std::vector<OperationProblems> all_operation_problems();

// Numbers for inputs, the same every time for a name.
class DrawnInputs {
 public:
  explicit DrawnInputs(std::string_view name) : random_(1, name) {}

  at::Tensor normal(at::IntArrayRef shape, double scale);
  at::Tensor uniform(at::IntArrayRef shape);  // from 0 to 1
  at::Tensor rows(at::IntArrayRef shape);     // tokens, as sublayers write them
  at::Tensor gain(int64_t width);
  // A query of this length: the standard deviation of its scores.
  at::Tensor query(int64_t width, double length);

 private:
  at::Tensor fill(at::IntArrayRef shape, const std::function<double(uint64_t)>& value);

  RandomStream random_;
  uint64_t counter_ = 0;
};

// What the folders' problems are made of.
namespace problems {

using Tensors = OperationProblem::Tensors;

// Widths beside those of vectors.
inline const std::vector<int64_t> kWidths = {1,  2,  3,  5,  7,  8,   15,  16,  17,  31,
                                             32, 33, 63, 64, 65, 127, 128, 257, 2000};

// Problems of 5 tokens of each width, and a large one.
OperationProblems of_widths(const char* name, const std::vector<int64_t>& widths,
                            OperationProblem (*make)(int64_t tokens, int64_t width),
                            const ErrorBounds& forward, const std::optional<ErrorBounds>& backward);

// Inputs: two factors and a sum, of these shapes. Results: the product, and the sum with it, of
// which `multiply` writes the one or adds to the other, in float32.
OperationProblem product_problem(const char* name,
                                 const std::array<std::vector<int64_t>, 3>& shapes,
                                 void (*multiply)(const at::Tensor& a, const at::Tensor& b,
                                                  const at::Tensor& sum, bool add),
                                 at::Tensor (*formula)(const at::Tensor& a, const at::Tensor& b));

// Tokens of tensors as vectors, and back, for references.
using Number = long double;
std::vector<Number> row(const at::Tensor& rows, int64_t token);
// The rows of `count` tensors from the `begin`-th on; a tensor of one row (a gain, a query) has it
// for all.
std::vector<std::vector<Number>> rows_at(const Tensors& tensors, size_t begin, size_t count,
                                         int64_t token);
void add_row(const at::Tensor& rows, int64_t token, const std::vector<Number>& values);

Tensors zeros_like(const Tensors& tensors);
Tensors joined(Tensors results, const Tensors& gradients);

}  // namespace problems
}  // namespace attnres
