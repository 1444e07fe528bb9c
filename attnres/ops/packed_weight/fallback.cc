#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/exp2.h>
#include <ATen/ops/index.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include <array>
#include <utility>
#include <vector>

#include "attnres/ops/composed.h"
#include "attnres/ops/packed_weight/packed_weight.h"
#include "attnres/ops/packed_weight/streaming_product.h"

namespace attnres {
namespace {

using at::Tensor;

Tensor numbers_as(const Tensor& bytes, at::ScalarType dtype) {
  return bytes.contiguous().view(dtype).to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
}

// Numbers of blocks [..., blocks, numbers] as bytes without excess, and what they stand for:
// scales * numbers + offsets, in groups [..., blocks, groups, 1].
struct Decoded {
  Tensor numbers, scales, offsets;
};

Tensor bytes_of(const Tensor& blocks, int64_t first, int64_t count) {
  return blocks.narrow(-1, first, count);
}
Tensor half_of(const Tensor& blocks, int64_t at) {
  return numbers_as(bytes_of(blocks, at, 2), at::kHalf);
}
Tensor bits_from(const Tensor& bytes, int64_t down, int64_t mask) {
  return bytes.bitwise_right_shift(down).bitwise_and(mask);
}
Tensor nibbles_of(const Tensor& bytes) {
  return at::cat({bits_from(bytes, 0, 15), bits_from(bytes, 4, 15)}, -1);
}
// Bits 0, `step`, 2 `step` .. of each byte, all bytes of one after the other.
Tensor planes_of(const Tensor& bytes, int64_t count, int64_t step) {
  std::vector<Tensor> planes;
  for (int64_t j = 0; j < count; ++j) {
    planes.push_back(bits_from(bytes, step * j, (1 << step) - 1));
  }
  return at::cat(planes, -1);
}
// The 32 bits of four bytes in their order.
Tensor bits_in_order(const Tensor& four_bytes) {
  std::vector<Tensor> bits;
  for (int64_t i = 0; i < 8; ++i) bits.push_back(bits_from(four_bytes, i, 1));
  return at::stack(bits, -1).flatten(-2);
}
Tensor of_table(const std::array<int8_t, 16>& table, const Tensor& nibbles) {
  const Tensor numbers = at::tensor(at::ArrayRef<int8_t>(table.data(), 16), at::kChar);
  return numbers.to(nibbles.device()).to(at::kFloat).index({nibbles.to(at::kLong)});
}
Tensor floats(const Tensor& bytes) {
  return bytes.to(at::kFloat);
}
// Each of the groups that share a small number twice or more.
Tensor in_groups(const Tensor& numbers, int64_t groups) {
  return numbers.unflatten(-1, {groups, -1});
}

Decoded decode_32(WeightFormat format, const Tensor& blocks) {
  const auto of = [&](int64_t at) { return half_of(blocks, at).unsqueeze(-1); };
  switch (format) {
    case WeightFormat::q8_0:
      return {numbers_as(bytes_of(blocks, 2, 32), at::kChar), of(0), {}};
    case WeightFormat::q4_0:
      return {floats(nibbles_of(bytes_of(blocks, 2, 16))) - 8, of(0), {}};
    case WeightFormat::q4_1:
      return {floats(nibbles_of(bytes_of(blocks, 4, 16))), of(0), of(2)};
    case WeightFormat::q5_0:
    case WeightFormat::q5_1: {
      const bool has_offset = format == WeightFormat::q5_1;
      const int64_t at = has_offset ? 4 : 2;
      const Tensor fifth = bits_in_order(bytes_of(blocks, at, 4));
      const Tensor numbers = floats(nibbles_of(bytes_of(blocks, at + 4, 16)) + fifth * 16);
      return {has_offset ? numbers : numbers - 16, of(0), has_offset ? of(2) : Tensor()};
    }
    case WeightFormat::iq4_nl:
      return {of_table(kIq4Numbers, nibbles_of(bytes_of(blocks, 2, 16))), of(0), {}};
    default: {
      const Tensor powers = at::exp2(bytes_of(blocks, 0, 1).to(at::kDouble) - 128).to(at::kFloat);
      return {
          of_table(kE2m1Numbers, nibbles_of(bytes_of(blocks, 1, 16))), powers.unsqueeze(-1), {}};
    }
  }
}

// Eight scales and eight offsets of six bits each.
std::pair<Tensor, Tensor> six_bits(const Tensor& bytes) {
  const Tensor a = bytes.narrow(-1, 0, 4), b = bytes.narrow(-1, 4, 4), c = bytes.narrow(-1, 8, 4);
  return {at::cat({bits_from(a, 0, 63), bits_from(c, 0, 15) + bits_from(a, 6, 3) * 16}, -1),
          at::cat({bits_from(b, 0, 63), bits_from(c, 4, 15) + bits_from(b, 6, 3) * 16}, -1)};
}

Decoded decode_256(WeightFormat format, const Tensor& blocks) {
  const auto times = [&](int64_t at, const Tensor& small) {
    return (half_of(blocks, at) * floats(small)).unsqueeze(-1);
  };
  const auto halves = [&](int64_t first, int64_t bytes) {
    return bytes_of(blocks, first, 2 * bytes).unflatten(-1, {2, bytes});
  };
  switch (format) {
    case WeightFormat::q2_K: {
      const Tensor small = bytes_of(blocks, 0, 16);
      return {floats(planes_of(halves(16, 32), 4, 2).flatten(-2)),
              times(80, bits_from(small, 0, 15)), -times(82, bits_from(small, 4, 15))};
    }
    case WeightFormat::q3_K: {
      const Tensor packed = bytes_of(blocks, 96, 8), upper = bytes_of(blocks, 104, 4);
      const Tensor scales = floats(nibbles_of(packed) + planes_of(upper, 4, 2) * 16) - 32;
      const Tensor numbers = planes_of(halves(32, 32), 4, 2).flatten(-2) +
                             planes_of(bytes_of(blocks, 0, 32), 8, 1) * 4;
      return {floats(numbers) - 4, times(108, scales), {}};
    }
    case WeightFormat::q4_K:
    case WeightFormat::q5_K: {
      const bool has_fifth = format == WeightFormat::q5_K;
      const auto [scales, offsets] = six_bits(bytes_of(blocks, 4, 12));
      const Tensor bytes = bytes_of(blocks, has_fifth ? 48 : 16, 128).unflatten(-1, {4, 32});
      Tensor numbers = nibbles_of(bytes).flatten(-2);
      if (has_fifth) numbers = numbers + planes_of(bytes_of(blocks, 16, 32), 8, 1) * 16;
      return {floats(numbers), times(0, scales), -times(2, offsets)};
    }
    case WeightFormat::q6_K: {
      const Tensor numbers =
          (nibbles_of(halves(0, 64)) + planes_of(halves(128, 32), 4, 2) * 16).flatten(-2);
      return {
          floats(numbers) - 32, times(208, numbers_as(bytes_of(blocks, 192, 16), at::kChar)), {}};
    }
    default: {
      const Tensor lower = bytes_of(blocks, 4, 4), upper = bytes_of(blocks, 2, 2);
      const Tensor pairs = at::stack({bits_from(lower, 0, 15), bits_from(lower, 4, 15)}, -1);
      const Tensor fours = at::stack({bits_from(upper, 0, 3), bits_from(upper, 2, 3),
                                      bits_from(upper, 4, 3), bits_from(upper, 6, 3)},
                                     -1);
      const Tensor scales = floats(pairs.flatten(-2) + fours.flatten(-2) * 16) - 32;
      const Tensor bytes = bytes_of(blocks, 8, 128).unflatten(-1, {8, 16});
      return {of_table(kIq4Numbers, nibbles_of(bytes).flatten(-2)), times(0, scales), {}};
    }
  }
}

}  // namespace

Tensor unpack_weight_composed(const PackedMatrix& weight) {
  if (weight.format == WeightFormat::f32) return numbers_as(weight.bytes, at::kFloat);
  if (weight.format == WeightFormat::f16) return numbers_as(weight.bytes, at::kHalf);
  if (weight.format == WeightFormat::bf16) return numbers_as(weight.bytes, at::kBFloat16);
  const WeightBlocks& of = blocks_of(weight.format);
  const Tensor blocks = weight.bytes.unflatten(-1, {-1, of.bytes});
  if (weight.format == WeightFormat::fp8) {
    const Tensor numbers = numbers_as(bytes_of(blocks, 4, 128), at::kFloat8_e4m3fn);
    return (numbers * numbers_as(bytes_of(blocks, 0, 4), at::kFloat)).flatten(-2);
  }
  const Decoded decoded =
      of.numbers == 32 ? decode_32(weight.format, blocks) : decode_256(weight.format, blocks);
  Tensor values = in_groups(decoded.numbers, decoded.scales.size(-2)) * decoded.scales;
  if (decoded.offsets.defined()) values = values + decoded.offsets;
  return values.flatten(-3);
}

std::vector<Tensor> streaming_products_composed(const Tensor& x_MK,
                                                const std::vector<PackedMatrix>& weights) {
  std::vector<Tensor> outputs;
  for (const PackedMatrix& weight : weights) {
    const bool has_numbers = weight.bytes.scalar_type() != at::kByte;
    if (!has_numbers) note_composed("products with packed weights", x_MK);
    const Tensor numbers =
        has_numbers ? weight.bytes.to(at::kFloat)
                    : unpack_weight_composed({weight.bytes, weight.format, x_MK.size(1)});
    outputs.push_back(at::mm(x_MK, numbers.t()));
  }
  return outputs;
}

}  // namespace attnres
