#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/nan_to_num.h>

#include <string>
#include <utility>

#include "attnres/ops/operation_problems.h"
#include "attnres/ops/packed_weight/packed_weight.h"
#include "attnres/ops/packed_weight/reference.h"
#include "attnres/ops/packed_weight/streaming_product.h"
#include "attnres/parameters/precision.h"

namespace attnres {
namespace {

using at::Tensor;
using problems::Tensors;

struct PackedFormat {
  WeightFormat format;
  double rounding;  // at most, of the largest number of a block

  std::string name() const { return weight_format_names().at(static_cast<size_t>(format)); }
};

constexpr PackedFormat kPackedFormats[] = {{WeightFormat::f32, 0},
                                           {WeightFormat::f16, 0x1p-11},
                                           {WeightFormat::bf16, 0x1p-8},
                                           {WeightFormat::q8_0, 1 / 220.0},
                                           {WeightFormat::q4_0, 1 / 7.9}};

// Input: W. Result: what is read of it when it was packed.
OperationProblem packing_problem(WeightFormat format, int64_t N, int64_t K) {
  DrawnInputs draw("packed weight");
  OperationProblem problem;
  problem.inputs = {draw.normal({N, K}, 1)};
  problem.compute = [format](const Tensors& in) -> Tensors {
    return {unpack_weight(pack_weight(in[0], format))};
  };
  problem.formula = [](const Tensors& in) { return in; };
  return problem;
}

// Number by number.
Tensor packed_numbers(const PackedMatrix& weight) {
  const int64_t N = weight.bytes.size(0), K = weight.columns, bytes = weight.bytes.size(1);
  Tensor numbers = at::empty({N, K}, at::kDouble);
  const auto* rows = weight.bytes.const_data_ptr<uint8_t>();
  for (int64_t n = 0; n < N; ++n) {
    for (int64_t k = 0; k < K; ++k) {
      numbers.mutable_data_ptr<double>()[n * K + k] =
          reference::packed_value(weight.format, rows + n * bytes, k);
    }
  }
  return numbers;
}

// x as products with weights of this format take it.
Tensor multiplied_numbers(const Tensor& x, WeightFormat format) {
  if (!has_blocks(format)) return x;
  const Tensor blocks = x.to(at::kFloat).unflatten(-1, {-1, kPackedBlock});
  const Tensor scales = blocks.abs().amax(-1, /*keepdim=*/true) / 127;
  const Tensor numbers = at::nan_to_num(blocks * (1 / scales)).round();
  return (numbers.to(at::kDouble) * scales.to(at::kDouble)).flatten(-2);
}

// Inputs: x [M, K], W [N, K], which is packed first.
OperationProblem streaming_problem(WeightFormat format, int64_t M, int64_t N, int64_t K) {
  DrawnInputs draw("streaming product");
  OperationProblem problem;
  problem.inputs = {draw.rows({M, K}), draw.normal({N, K}, 1)};
  problem.compute = [format](const Tensors& in) -> Tensors {
    const PackedMatrix weight = pack_weight(in[1], format);
    return {streaming_product(in[0].contiguous(), weight.bytes, format)};
  };
  problem.formula = [format](const Tensors& in) -> Tensors {
    return {multiplied_numbers(in[0], format).mm(packed_numbers(pack_weight(in[1], format)).t())};
  };
  return problem;
}

}  // namespace

std::vector<OperationProblems> packed_weight_problems() {
  std::vector<OperationProblems> all;
  for (const PackedFormat& packed : kPackedFormats) {
    OperationProblems packing = {.name = "packing, " + packed.name(),
                                 .forward = {packed.rounding, {}, {}},
                                 .large = packing_problem(packed.format, 400, 1024)};
    OperationProblems product = {.name = "streaming product, " + packed.name(),
                                 .forward = {1e-5, {}, {}},
                                 .large = streaming_problem(packed.format, 9, 400, 1024)};
    for (const auto& [N, K] : {std::pair{7, 32}, {3, 64}, {130, 1024}, {37, 352}}) {
      packing.problems.push_back(packing_problem(packed.format, N, K));
      for (const int64_t M : {1, 2, 5, 8, 33}) {
        product.problems.push_back(streaming_problem(packed.format, M, N, K));
      }
    }
    all.push_back(std::move(packing));
    all.push_back(std::move(product));
  }
  return all;
}

}  // namespace attnres
