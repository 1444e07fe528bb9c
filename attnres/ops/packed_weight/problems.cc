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

namespace attnres {
namespace {

using at::Tensor;
using problems::Tensors;

constexpr double kReadOnly = -1;

// By how much numbers change when they are packed, at most, of the largest.
double rounding_of(WeightFormat format) {
  switch (format) {
    case WeightFormat::f32:
      return 0;
    case WeightFormat::f16:
      return 0x1p-11;
    case WeightFormat::bf16:
      return 0x1p-8;
    case WeightFormat::q8_0:
      return 1 / 220.0;
    case WeightFormat::q4_0:
      return 1 / 7.9;
    case WeightFormat::q4_1:
      return 1 / 14.9;
    case WeightFormat::q5_0:
      return 1 / 15.9;
    case WeightFormat::q5_1:
      return 1 / 30.0;
    case WeightFormat::q4_K:
      return 1 / 8.0;
    case WeightFormat::q5_K:
      return 1 / 16.0;
    case WeightFormat::q6_K:
      return 1 / 28.0;
    default:
      return kReadOnly;
  }
}

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

// Any bytes of a weight's rows, as numbers.
Tensor drawn_bytes(DrawnInputs& draw, WeightFormat format, int64_t N, int64_t K) {
  const int64_t row_bytes = packed_row_bytes(format, K);
  const Tensor bytes = draw.normal({N, row_bytes}, 1e4).abs().remainder(256).to(at::kByte);
  reference::tame_blocks(format, bytes.mutable_data_ptr<uint8_t>(), bytes.numel());
  return bytes.to(at::kDouble);
}

PackedMatrix weight_of(const Tensor& bytes, WeightFormat format, int64_t K) {
  return {bytes.to(at::kByte), format, K};
}

// Input: bytes. Result: the numbers that they stand for.
OperationProblem reading_problem(WeightFormat format, int64_t N, int64_t K) {
  DrawnInputs draw("packed weight");
  OperationProblem problem;
  problem.inputs = {drawn_bytes(draw, format, N, K)};
  problem.compute = [=](const Tensors& in) -> Tensors {
    return {unpack_weight(weight_of(in[0], format, K))};
  };
  problem.formula = [=](const Tensors& in) -> Tensors {
    return {packed_numbers(weight_of(in[0], format, K))};
  };
  return problem;
}

// x as products with weights of this format take it.
Tensor multiplied_numbers(const Tensor& x, WeightFormat format) {
  if (!is_quantized(format)) return x;
  const Tensor blocks = x.to(at::kFloat).unflatten(-1, {-1, 32});
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
    return streaming_products(in[0].contiguous(), {pack_weight(in[1], format)});
  };
  problem.formula = [format](const Tensors& in) -> Tensors {
    return {multiplied_numbers(in[0], format).mm(packed_numbers(pack_weight(in[1], format)).t())};
  };
  return problem;
}

// The same of bytes in the place of W.
OperationProblem streaming_problem_of_bytes(WeightFormat format, int64_t M, int64_t N, int64_t K) {
  DrawnInputs draw("streaming product");
  OperationProblem problem;
  problem.inputs = {draw.rows({M, K}), drawn_bytes(draw, format, N, K)};
  problem.compute = [=](const Tensors& in) -> Tensors {
    return streaming_products(in[0].contiguous(), {weight_of(in[1], format, K)});
  };
  problem.formula = [=](const Tensors& in) -> Tensors {
    const Tensor numbers = packed_numbers(weight_of(in[1], format, K));
    return {multiplied_numbers(in[0], format).mm(numbers.t())};
  };
  return problem;
}

}  // namespace

std::vector<OperationProblems> packed_weight_problems() {
  std::vector<OperationProblems> all;
  for (size_t i = 0; i < kWeightFormats.size(); ++i) {
    const auto format = static_cast<WeightFormat>(i);
    const double rounding = rounding_of(format);
    const bool is_read_only = rounding == kReadOnly;
    const auto store = is_read_only ? reading_problem : packing_problem;
    const auto multiply = is_read_only ? streaming_problem_of_bytes : streaming_problem;
    const std::string name = blocks_of(format).name;
    // Whole numbers times float16 scales are float32 numbers; those of fp8 have more digits.
    const double reading = format == WeightFormat::fp8 ? 1e-7 : 0;
    OperationProblems storing = {.name = (is_read_only ? "reading, " : "packing, ") + name,
                                 .forward = {is_read_only ? reading : rounding, {}, {}},
                                 .large = store(format, 400, 1024)};
    OperationProblems product = {.name = "streaming product, " + name,
                                 .forward = {1e-5, {}, {}},
                                 .large = multiply(format, 40, 400, 1024)};
    for (const auto& [N, K] : {std::pair{7, 32}, {3, 64}, {130, 1024}, {37, 352}, {9, 256}}) {
      if (!fits(format, K)) continue;
      storing.problems.push_back(store(format, N, K));
      for (const int64_t M : {1, 2, 5, 17, 33}) {
        product.problems.push_back(multiply(format, M, N, K));
      }
    }
    all.push_back(std::move(storing));
    all.push_back(std::move(product));
  }
  return all;
}

}  // namespace attnres
