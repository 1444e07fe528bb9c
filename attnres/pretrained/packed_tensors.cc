#include "attnres/pretrained/packed_tensors.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <fmt/ranges.h>

#include <string_view>

#include "attnres/support/error.h"
#include "attnres/support/format.h"

namespace attnres {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

constexpr int64_t kFp8Block = 128;

// In a block's first rows the others' scales too.
Tensor of_each_row(const Tensor& scales, int64_t rows) {
  return scales.repeat_interleave(kFp8Block, 0).narrow(0, 0, rows);
}

Tensor fp8_rows(const Tensors& of) {
  const int64_t N = of[0].size(0), blocks = of[1].size(1);
  const Tensor scales = of[1].contiguous().view(at::kByte).view({of[1].size(0), blocks, 4});
  const Tensor numbers = of[0].contiguous().view(at::kByte).view({N, blocks, kFp8Block});
  return at::cat({of_each_row(scales, N), numbers}, -1).flatten(1);
}

Tensor fp8_numbers(const Tensors& of) {
  const Tensor scales = of_each_row(of[1], of[0].size(0));
  return of[0].to(at::kFloat) * scales.repeat_interleave(kFp8Block, 1).narrow(1, 0, of[0].size(1));
}

// That they have these types and shapes, [N, K] the first's.
void check_pair(const TensorFiles& files, const std::string& name, const std::string& scale,
                at::ScalarType scale_type, const std::vector<int64_t>& expected) {
  const TensorInfo &of = files.info(name), &info = files.info(scale);
  require(of.shape.size() == 2 && info.dtype == scale_type && info.shape == expected,
          "{}: {} has the shape [{}], and {} is {} of shape [{}]; expected {} of shape [{}]",
          files.what(), one_line(name), fmt::join(of.shape, ", "), one_line(scale),
          stored_dtype_name(info.dtype), fmt::join(info.shape, ", "), stored_dtype_name(scale_type),
          fmt::join(expected, ", "));
}

int64_t blocks_in(int64_t size) {
  return (size + kFp8Block - 1) / kFp8Block;
}

// The name with another end.
std::string beside(const std::string& name, std::string_view end, const char* other) {
  return name.substr(0, name.size() - end.size()) + other;
}

}  // namespace

// Neighbours in a byte become the i-th and the (i + 16)-th of 32.
Tensor mxfp4_rows(const Tensors& of) {
  const Tensor pairs = of[0].unflatten(1, {-1, 16});
  const Tensor numbers =
      at::stack({pairs.bitwise_and(15), pairs.bitwise_right_shift(4)}, -1).flatten(-2);
  const Tensor bytes = numbers.narrow(-1, 0, 16) + numbers.narrow(-1, 16, 16) * 16;
  return at::cat({of[1].unsqueeze(-1), bytes}, -1).flatten(1);
}

std::optional<MadeTensor> made_of_quantized(const std::string& name, const TensorFiles& files) {
  constexpr std::string_view kWeight = ".weight", kPacked = ".weight_packed";
  const TensorInfo& info = files.info(name);
  if (name.ends_with(kWeight) && info.dtype == at::kFloat8_e4m3fn && info.shape.size() == 2) {
    const std::string scale = name + "_scale_inv";
    if (!files.contains(scale)) return {};
    check_pair(files, name, scale, at::kFloat,
               {blocks_in(info.shape[0]), blocks_in(info.shape[1])});
    if (info.shape[1] % kFp8Block != 0) return MadeTensor{name, {name, scale}, fp8_numbers};
    return MadeTensor{name, {name, scale}, fp8_rows, WeightFormat::fp8};
  }
  if (name.ends_with(kPacked) && info.dtype == at::kByte && info.shape.size() == 2) {
    const std::string scale = beside(name, kPacked, ".weight_scale");
    if (!files.contains(scale)) return {};
    require(info.shape[1] % 16 == 0, "{}: {} has rows of {} bytes, expected a multiple of 16",
            files.what(), one_line(name), info.shape[1]);
    check_pair(files, name, scale, at::kByte, {info.shape[0], info.shape[1] / 16});
    return MadeTensor{
        beside(name, kPacked, ".weight"), {name, scale}, mxfp4_rows, WeightFormat::mxfp4};
  }
  return {};
}

}  // namespace attnres
