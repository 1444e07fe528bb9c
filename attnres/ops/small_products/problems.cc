#include <ATen/core/Tensor.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <type_traits>

#include "attnres/ops/operation_problems.h"
#include "attnres/ops/small_products/kernel.h"
#include "attnres/ops/small_products/small_products.h"
#include "attnres/ops/tensors.h"

namespace attnres {
namespace {

using at::Tensor;
using kernel::BFloat16;
using problems::Tensors;

template <class Storage>
kernel::MatrixRows<Storage> matrix_rows(const Tensor& x) {
  return {data<const Storage>(x), x.stride(0), x.size(0), x.size(1)};
}

// [R, C] gives [C, R].
template <class Storage>
Tensor transposed_operand(const Tensor& x) {
  const Tensor to = at::empty({x.size(1), x.size(0)}, x.options());
  kernel::transpose(matrix_rows<Storage>(x), data<Storage>(to), x.size(0));
  return to;
}

// [R, C] gives [(R + 1) / 2, C, 2].
Tensor operand_in_pairs(const Tensor& x) {
  const Tensor to = at::empty({(x.size(0) + 1) / 2, x.size(1), 2}, x.options());
  kernel::pair_rows(matrix_rows<BFloat16>(x), data<BFloat16>(to));
  return to;
}

// [R, C] gives [C / 2, R, 2].
Tensor transposed_operand_in_pairs(const Tensor& x) {
  const Tensor to = at::empty({x.size(1) / 2, x.size(0), 2}, x.options());
  kernel::transpose_in_pairs(matrix_rows<BFloat16>(x), data<BFloat16>(to), x.size(0));
  return to;
}

Tensor pairs_formula(const Tensor& x) {
  const Tensor even = at::constant_pad_nd(x, {0, 0, 0, x.size(0) % 2});
  return even.unflatten(0, {-1, 2}).transpose(1, 2);
}

OperationProblem operand_problem(int64_t rows, int64_t columns) {
  DrawnInputs draw("small products' operands");
  OperationProblem problem;
  problem.inputs = {draw.rows({rows, columns})};
  problem.compute = [](const Tensors& in) -> Tensors {
    return {in[0].scalar_type() == at::kFloat ? transposed_operand<float>(in[0])
                                              : transposed_operand<BFloat16>(in[0])};
  };
  problem.formula = [](const Tensors& in) -> Tensors { return {in[0].t()}; };
  return problem;
}

OperationProblem paired_operand_problem(int64_t rows, int64_t columns) {
  OperationProblem problem = operand_problem(rows, columns);
  problem.compute = [](const Tensors& in) -> Tensors {
    return {operand_in_pairs(in[0]), transposed_operand_in_pairs(in[0])};
  };
  problem.formula = [](const Tensors& in) -> Tensors {
    return {pairs_formula(in[0]), pairs_formula(in[0].t())};
  };
  return problem;
}

// Some rows of A at a time, on all threads.
void multiply_by_parts(const Tensor& a, const Tensor& b, const Tensor& c, bool add) {
  constexpr int64_t kRows = 32;
  const int64_t m = a.size(0), k = a.size(1), n = b.size(1);
  const Tensor right = a.scalar_type() == at::kFloat ? b : operand_in_pairs(b);
  with_small_products((m + kRows - 1) / kRows, [&](int64_t first, int64_t last) {
    for (int64_t i = first * kRows; i < std::min(m, last * kRows); i += kRows) {
      const int64_t rows = std::min(kRows, m - i);
      with_storage_type(a.scalar_type(), [&](auto storage) {
        using Storage = decltype(storage);
        if constexpr (!std::is_same_v<Storage, double>) {
          multiply(rows, n, k, data<const Storage>(a) + i * k, k, data<const Storage>(right), n,
                   data<float>(c) + i * n, n, add);
        }
      });
    }
  });
}

// Inputs: A [m, k], B [k, n] and a sum.
OperationProblem small_products_problem(int64_t m, int64_t n, int64_t k) {
  return problems::product_problem("small products", {{{m, k}, {k, n}, {m, n}}}, multiply_by_parts,
                                   [](const Tensor& a, const Tensor& b) { return a.mm(b); });
}

}  // namespace

std::vector<OperationProblems> small_products_problems() {
  OperationProblems operands = {
      .name = "transposed operands", .forward = {0, {}, 0}, .large = operand_problem(300, 200)};
  OperationProblems pairs = {.name = "operands in pairs",
                             .forward = {{}, {}, 0},
                             .large = paired_operand_problem(300, 200)};
  for (const int64_t rows : {1, 2, 3, 8, 9, 33}) {
    for (const int64_t columns : {2, 4, 8, 10, 34}) {
      operands.problems.push_back(operand_problem(rows, columns));
      pairs.problems.push_back(paired_operand_problem(rows, columns));
    }
  }
  return {operands,
          pairs,
          {.name = "small products",
           .forward = {1e-5, {}, 1e-5},  // sums are float32
           .problems = {small_products_problem(1, 5, 2), small_products_problem(64, 256, 64),
                        small_products_problem(65, 100, 130), small_products_problem(7, 33, 10)},
           .large = small_products_problem(128, 96, 64),
           .on_this_processor = has_small_products}};
}

}  // namespace attnres
