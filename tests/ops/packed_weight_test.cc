#include "attnres/ops/packed_weight/packed_weight.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "attnres/ops/matmul/matmul.h"
#include "attnres/ops/packed_weight/reference.h"
#include "attnres/ops/packed_weight/streaming_product.h"
#include "attnres/support/error.h"
#include "tests/ops/every_target.h"

namespace attnres::testing::packed_weight_test {
namespace {

using ::testing::HasSubstr;

constexpr WeightFormat kFormats[] = {WeightFormat::f32, WeightFormat::f16, WeightFormat::bf16,
                                     WeightFormat::q8_0, WeightFormat::q4_0};
constexpr int64_t kSizes[][2] = {{1, 32}, {3, 64}, {8, 96}, {37, 352}, {130, 1024}};  // N, K

at::Tensor random(at::IntArrayRef shape, int seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::randn(shape, generator, at::kFloat);
}

at::Tensor linear_with(const at::Tensor& x, const PackedMatrix& weight) {
  return linear_map(x, MapWeight(at::Tensor(), weight));
}

// Number by number, in double.
at::Tensor meant(const PackedMatrix& weight) {
  const int64_t N = weight.bytes.size(0), K = weight.columns, bytes = weight.bytes.size(1);
  at::Tensor values = at::empty({N, K}, at::kDouble);
  const auto* rows = weight.bytes.const_data_ptr<uint8_t>();
  for (int64_t n = 0; n < N; ++n) {
    for (int64_t k = 0; k < K; ++k) {
      values.mutable_data_ptr<double>()[n * K + k] =
          reference::packed_value(weight.format, rows + n * bytes, k);
    }
  }
  return values;
}

double largest(const at::Tensor& x) {
  return x.abs().max().item<double>();
}

// x as products with quantized weights take it, in double.
at::Tensor rounded_in_blocks(const at::Tensor& x) {
  const at::Tensor blocks = x.to(at::kFloat).unflatten(-1, {-1, kPackedBlock});
  const at::Tensor scales = blocks.abs().amax(-1, /*keepdim=*/true) / 127;
  const at::Tensor numbers = at::nan_to_num(blocks * (1 / scales)).round();
  return (numbers.to(at::kDouble) * scales.to(at::kDouble)).flatten(-2);
}

TEST(PackedWeight, KeepsNumbersAsItsFormatSays) {
  const at::Tensor values = random({40, 96}, 1);
  // Bounds relative to the largest number of a block, but for f32.
  const std::pair<WeightFormat, double> bounds[] = {{WeightFormat::f32, 0},
                                                    {WeightFormat::f16, 0x1p-11},
                                                    {WeightFormat::bf16, 0x1p-8},
                                                    {WeightFormat::q8_0, 1 / 220.0},
                                                    {WeightFormat::q4_0, 1 / 7.9}};
  for (const auto& [format, bound] : bounds) {
    const PackedMatrix packed = pack_weight(values, format);
    const at::Tensor kept = unpack_weight(packed);
    EXPECT_TRUE(at::equal(kept.to(at::kDouble), meant(packed).to(at::kFloat).to(at::kDouble)));
    const at::Tensor of = (kept - values).unflatten(-1, {-1, kPackedBlock}).abs().amax(-1) /
                          values.unflatten(-1, {-1, kPackedBlock}).abs().amax(-1);
    EXPECT_LE(largest(of), bound);
    if (bound > 0) {
      EXPECT_GT(largest(of), bound / 4);
    }
  }
}

TEST(PackedWeight, KeepsWhatItStoresExactly) {
  // What either format holds: a scale of float16, and the numbers of its steps.
  at::Tensor eighths = at::arange(-8, 8).to(at::kFloat).repeat({2}).mul(0.125).unsqueeze(0);
  EXPECT_TRUE(at::equal(unpack_weight(pack_weight(eighths, WeightFormat::q4_0)), eighths));
  at::Tensor steps = at::arange(0, 32).to(at::kFloat).unsqueeze(0);
  steps[0][31] = -127;
  EXPECT_TRUE(at::equal(unpack_weight(pack_weight(steps * 0.5, WeightFormat::q8_0)), steps * 0.5));
  const at::Tensor zeros = at::zeros({2, 64});
  for (const WeightFormat format : kFormats) {
    EXPECT_TRUE(at::equal(unpack_weight(pack_weight(zeros, format)), zeros));
  }
  // Halves round to even, become subnormal, and keep their signs.
  const at::Tensor halves = at::tensor({1.0F + 0x1p-11F, 1.0F + 3 * 0x1p-11F, -0x1p-24F, 0x1.8p-25F,
                                        0x1p-26F, 65504.0F, 0x1.0p-14F, -0x1.ffcp-15F});
  EXPECT_TRUE(at::equal(unpack_weight(pack_weight(halves.unsqueeze(0), WeightFormat::f16))[0],
                        halves.to(at::kHalf).to(at::kFloat)));
}

TEST(PackedWeight, MultipliesAsTheReferenceOnEveryInstructionSet) {
  on_every_target([] {
    for (const WeightFormat format : kFormats) {
      for (const auto& [N, K] : kSizes) {
        const PackedMatrix weight = pack_weight(random({N, K}, 2), format);
        for (const int64_t M : {1, 2, 3, 5, 8, 9, 32, 64}) {
          const at::Tensor x = random({M, K}, 3);
          const at::Tensor seen = has_blocks(format) ? rounded_in_blocks(x) : x.to(at::kDouble);
          const at::Tensor expected = at::mm(seen, meant(weight).t());
          const at::Tensor y = linear_with(x, weight);
          EXPECT_EQ(y.sizes(), at::IntArrayRef({M, N}));
          EXPECT_LT(largest(y.to(at::kDouble) - expected), 1e-6 * std::sqrt(K) * 10)
              << int(format) << " " << M << " x " << K << " x " << N;
          // A weight of one row more or less would not pass.
          EXPECT_GT(largest(y.to(at::kDouble) - expected.roll(1, 1)) + (N == 1), 0.1);
        }
      }
    }
  });
}

TEST(PackedWeight, MultipliesManyRowsInFloat32) {
  for (const WeightFormat format : kFormats) {
    const PackedMatrix weight = pack_weight(random({130, 352}, 4), format);
    const at::Tensor x = random({3, 50, 352}, 5);
    const at::Tensor expected = at::matmul(x.to(at::kDouble), meant(weight).t());
    EXPECT_LT(largest(linear_with(x, weight).to(at::kDouble) - expected), 2e-4);
  }
}

TEST(PackedWeight, IsReadByTensorOperationsElsewhere) {
  for (const WeightFormat format : kFormats) {
    const PackedMatrix stack = pack_weight(random({2, 5, 96}, 12), format);
    EXPECT_TRUE(at::equal(unpack_weight_composed(stack), unpack_weight(stack)));
    const PackedMatrix weight = pack_weight(random({9, 96}, 13), format);
    const at::Tensor x = random({3, 96}, 14);
    const at::Tensor expected = at::mm(x.to(at::kDouble), meant(weight).t());
    const at::Tensor y = streaming_product_composed(x, weight.bytes, format);
    EXPECT_LT(largest(y - expected), 1e-4);
    EXPECT_GT(largest(y - expected.roll(1, 1)), 0.1);
    // The CPU rounds what it multiplies with quantized numbers.
    const double rounding = has_blocks(format) ? 0.5 : 1e-4;
    EXPECT_LT(largest(y - streaming_product(x, weight.bytes, format)), rounding);
  }
  const at::Tensor rows = random({9, 96}, 15).to(at::kBFloat16), x = random({3, 96}, 16);
  EXPECT_LT(largest(streaming_product_composed(x, rows, WeightFormat::bf16) -
                    streaming_product(x, rows, WeightFormat::bf16)),
            1e-4);
}

TEST(PackedWeight, TakesRowsOfBfloat16) {
  const PackedMatrix weight = pack_weight(random({16, 64}, 8), WeightFormat::q8_0);
  const at::Tensor x = random({2, 64}, 9).to(at::kBFloat16);
  const at::Tensor y = linear_with(x, weight);
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(at::equal(y, linear_with(x.to(at::kFloat), weight).to(at::kBFloat16)));
}

template <class F>
std::string refused(const F& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing";
}

TEST(PackedWeight, RefusesWhatItCannotStoreOrMultiply) {
  const at::Tensor odd = random({4, 48}, 10);
  EXPECT_THAT(refused([&] { pack_weight(odd, WeightFormat::q4_0); }),
              HasSubstr("rows of 48 numbers are no multiple of 32"));
  for (const WeightFormat format : kFormats) {
    for (const double number : {std::nan(""), -std::numeric_limits<double>::infinity()}) {
      EXPECT_THAT(refused([&] {
                    pack_weight(at::full({1, 32}, number), format);
                  }),
                  HasSubstr("its format holds"));
    }
  }
  EXPECT_THAT(refused([&] {
                pack_weight(at::full({1, 32}, -1e6), WeightFormat::f16);
              }),
              HasSubstr("holds 65504 at most"));
  const PackedMatrix weight = pack_weight(odd, WeightFormat::f16);
  EXPECT_THAT(refused([&] {
                linear_with(random({2, 47}, 11), weight);
              }),
              HasSubstr("the weight has 48 columns"));
  EXPECT_THAT(refused([&] {
                streaming_product(random({2, 48}, 11), weight.bytes.to(at::kMeta), weight.format);
              }),
              HasSubstr("streaming product: its tensors must be on one device"));
}

}  // namespace
}  // namespace attnres::testing::packed_weight_test
