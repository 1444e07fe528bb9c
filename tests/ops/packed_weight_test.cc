#include "attnres/ops/packed_weight/packed_weight.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "attnres/ops/matmul/matmul.h"
#include "attnres/ops/matmul/provider.h"
#include "attnres/ops/packed_weight/reference.h"
#include "attnres/ops/packed_weight/streaming_product.h"
#include "attnres/support/error.h"
#include "tests/ops/every_target.h"

namespace attnres::testing::packed_weight_test {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kSizes[][2] = {{1, 32},  {3, 64},     {8, 96},  {37, 352},
                                 {3, 256}, {130, 1024}, {5, 768}, {9, 288}};  // N, K

std::vector<WeightFormat> formats(bool only_packed_here) {
  std::vector<WeightFormat> all;
  for (size_t i = 0; i < kWeightFormats.size(); ++i) {
    if (!only_packed_here || kWeightFormats[i].is_packed_here) {
      all.push_back(static_cast<WeightFormat>(i));
    }
  }
  return all;
}
const std::vector<WeightFormat> kFormats = formats(/*only_packed_here=*/true);
const std::vector<WeightFormat> kReadFormats = formats(/*only_packed_here=*/false);

// As many as fit, or a few more.
int64_t columns_of(WeightFormat format, int64_t columns) {
  const int64_t block = blocks_of(format).numbers;
  return (columns + block - 1) / block * block;
}

at::Tensor random(at::IntArrayRef shape, int seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::randn(shape, generator, at::kFloat);
}

// Any numbers; any bytes where the format is only read.
PackedMatrix any_weight(WeightFormat format, at::IntArrayRef shape, int seed) {
  if (blocks_of(format).is_packed_here) return pack_weight(random(shape, seed), format);
  std::vector<int64_t> sizes = shape.vec();
  sizes.back() = packed_row_bytes(format, sizes.back());
  at::Generator generator = at::detail::createCPUGenerator(seed);
  const at::Tensor bytes = at::randint(256, sizes, generator, at::kByte);
  reference::tame_blocks(format, bytes.mutable_data_ptr<uint8_t>(), bytes.numel());
  return {bytes, format, shape.back()};
}

at::Tensor linear_with(const at::Tensor& x, const PackedMatrix& weight) {
  const at::NoGradGuard inferring;  // while gradients are recorded weights are unpacked
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
  const at::Tensor blocks = x.to(at::kFloat).unflatten(-1, {-1, 32});
  const at::Tensor scales = blocks.abs().amax(-1, /*keepdim=*/true) / 127;
  const at::Tensor numbers = at::nan_to_num(blocks * (1 / scales)).round();
  return (numbers.to(at::kDouble) * scales.to(at::kDouble)).flatten(-2);
}

TEST(PackedWeight, KeepsNumbersAsItsFormatSays) {
  const at::Tensor values = random({40, 768}, 1);
  // Bounds relative to the largest number of a block, but for f32.
  const std::pair<WeightFormat, double> bounds[] = {
      {WeightFormat::f32, 0},         {WeightFormat::f16, 0x1p-11},
      {WeightFormat::bf16, 0x1p-8},   {WeightFormat::q8_0, 1 / 220.0},
      {WeightFormat::q4_0, 1 / 7.9},  {WeightFormat::q4_1, 1 / 14.9},
      {WeightFormat::q5_0, 1 / 15.9}, {WeightFormat::q5_1, 1 / 30.0},
      {WeightFormat::q4_K, 1 / 7.0},  {WeightFormat::q5_K, 1 / 14.0},
      {WeightFormat::q6_K, 1 / 28.0}};
  ASSERT_EQ(std::size(bounds), kFormats.size());
  for (const auto& [format, bound] : bounds) {
    const PackedMatrix packed = pack_weight(values, format);
    const at::Tensor kept = unpack_weight(packed);
    EXPECT_TRUE(at::equal(kept.to(at::kDouble), meant(packed).to(at::kFloat).to(at::kDouble)));
    const int64_t block = format == WeightFormat::q6_K ? 16 : 32;  // that has a scale of its own
    const at::Tensor of = (kept - values).unflatten(-1, {-1, block}).abs().amax(-1) /
                          values.unflatten(-1, {-1, block}).abs().amax(-1);
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
  const at::Tensor zeros = at::zeros({2, 256});
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
    for (const WeightFormat format : kReadFormats) {
      for (const auto& [N, K] : kSizes) {
        if (!fits(format, K)) continue;
        const PackedMatrix weight = any_weight(format, {N, K}, 2);
        for (const int64_t M : {1, 2, 3, 5, 8, 16, 17, 28, 32, 64}) {
          const at::Tensor x = random({M, K}, 3);
          const at::Tensor seen = is_quantized(format) ? rounded_in_blocks(x) : x.to(at::kDouble);
          const at::Tensor expected = at::mm(seen, meant(weight).t());
          const at::Tensor y = linear_with(x, weight);
          EXPECT_EQ(y.sizes(), at::IntArrayRef({M, N}));
          EXPECT_LT(largest(y.to(at::kDouble) - expected),
                    1e-5 * std::sqrt(K) * std::max(1.0, largest(meant(weight))))
              << int(format) << " " << M << " x " << K << " x " << N;
          // A weight of one row more or less would not pass.
          EXPECT_GT(largest(y.to(at::kDouble) - expected.roll(1, 1)) + (N == 1), 0.1);
        }
      }
    }
  });
}

TEST(PackedWeight, MultipliesManyRowsOnEveryInstructionSet) {
  on_every_target([] {
    for (const WeightFormat format : kReadFormats) {
      const int64_t K = columns_of(format, 352);
      const PackedMatrix weight = any_weight(format, {130, K}, 4);
      const at::Tensor x = random({3, 50, K}, 5);
      // Where whole numbers are multiplied no faster, floats are.
      const bool in_whole_numbers = is_quantized(format) && is_streamed(weight, 150);
      const at::Tensor seen = in_whole_numbers ? rounded_in_blocks(x) : x.to(at::kDouble);
      const at::Tensor expected = at::matmul(seen, meant(weight).t());
      EXPECT_LT(largest(linear_with(x, weight).to(at::kDouble) - expected),
                2e-4 * std::max(1.0, largest(meant(weight))))
          << int(format);
    }
  });
}

TEST(PackedWeight, HidesNoNumberThatIsNotFinite) {
  on_every_target([] {
    for (const WeightFormat format : kReadFormats) {
      const PackedMatrix weight = any_weight(format, {20, 512}, 16);
      for (const double number : {std::nan(""), std::numeric_limits<double>::infinity()}) {
        for (const int64_t M : {1, 5, 40, 100}) {
          at::Tensor x = random({M, 512}, 17);
          x[M / 2][301] = number;
          const at::Tensor finite = at::isfinite(linear_with(x, weight));
          for (int64_t m = 0; m < M; ++m) {
            EXPECT_EQ(finite[m].any().item<bool>(), m != M / 2)
                << int(format) << " " << number << " row " << m << " of " << M;
            EXPECT_EQ(finite[m].all().item<bool>(), m != M / 2) << int(format) << " row " << m;
          }
        }
      }
    }
  });
}

TEST(PackedWeight, GivesTheNumbersThatItsBytesMean) {
  for (const WeightFormat format : kReadFormats) {
    const PackedMatrix weight = any_weight(format, {17, columns_of(format, 736)}, 6);
    const at::Tensor expected = meant(weight), numbers = unpack_weight(weight);
    // Two roundings, of a product and of a sum.
    EXPECT_TRUE(at::allclose(numbers.to(at::kDouble), expected, 2e-7, 2e-7)) << int(format);
    EXPECT_GT(largest(expected), 0.1) << int(format);
  }
}

TEST(PackedWeight, MultipliesSeveralWeightsAtOnce) {
  const at::Tensor x = random({3, 512}, 20);
  std::vector<PackedMatrix> weights;
  for (const WeightFormat format : kReadFormats) {
    weights.push_back(any_weight(format, {1 + 70 * (int(format) % 3), 512}, 21));
  }
  const std::vector<at::Tensor> together = streaming_products(x, weights);
  ASSERT_EQ(together.size(), weights.size());
  for (size_t i = 0; i < weights.size(); ++i) {
    EXPECT_TRUE(at::equal(together[i], streaming_products(x, {weights[i]}).front())) << i;
  }
}

TEST(PackedWeight, IsReadByTensorOperationsElsewhere) {
  for (const WeightFormat format : kReadFormats) {
    const int64_t K = columns_of(format, 96);
    const PackedMatrix stack = any_weight(format, {2, 5, K}, 12);
    EXPECT_TRUE(at::equal(unpack_weight_composed(stack), unpack_weight(stack))) << int(format);
    const PackedMatrix weight = any_weight(format, {9, K}, 13);
    const at::Tensor x = random({3, K}, 14);
    const at::Tensor expected = at::mm(x.to(at::kDouble), meant(weight).t());
    const at::Tensor y = streaming_products_composed(x, {weight}).front();
    const double scale = largest(expected);
    EXPECT_LT(largest(y - expected), 1e-5 * scale);
    EXPECT_GT(largest(y - expected.roll(1, 1)), 0.1 * scale);
    // The CPU rounds what it multiplies with quantized numbers.
    const double rounding = is_quantized(format) ? 0.03 : 1e-5;
    EXPECT_LT(largest(y - streaming_products(x, {weight}).front()), rounding * scale);
  }
  const PackedMatrix rows = {random({9, 96}, 15).to(at::kBFloat16), WeightFormat::bf16, 96};
  const at::Tensor x = random({3, 96}, 16);
  EXPECT_LT(largest(streaming_products_composed(x, {rows}).front() -
                    streaming_products(x, {rows}).front()),
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
                    pack_weight(at::full({1, 256}, number), format);
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
  EXPECT_THAT(
      refused([&] {
        streaming_products(random({2, 48}, 11), {{weight.bytes.to(at::kMeta), weight.format, 48}});
      }),
      HasSubstr("streaming product: its tensors must be on one device"));
}

}  // namespace
}  // namespace attnres::testing::packed_weight_test
