// The CUDA kernels of RMSNorm, SwiGLU, rotary embedding and cross-entropy, run on the host.
#include <gtest/gtest.h>

#include "tests/cuda_kernels/elementary_cases.h"
#include "tests/cuda_kernels/host_block.h"

namespace attnres::gpu::elementary_cuda_test {
namespace {

constexpr HostOrder kForwards, kBackwards{.backwards = true, .late_copies = true};

TEST(CudaCode, TheExponentialIsThatOfNegativeNumbers) {
  for (double x = 0; x > -86; x -= 0.0137) {
    const auto at = static_cast<float>(x);
    const double expected = std::exp(static_cast<double>(at));
    ASSERT_LT(std::abs(exp_of_negative(at) - expected), 2e-7 * expected) << x;
  }
  EXPECT_EQ(exp_of_negative(0), 1);
  EXPECT_EQ(exp_of_negative(-INFINITY), exp_of_negative(-86));
  EXPECT_TRUE(std::isnan(exp_of_negative(NAN)));
}

TEST(CudaCode, NumbersAreRoundedToTheNearest) {
  const auto rounded = [](float x) {
    return number(BFloat16{static_cast<uint16_t>(rounded_pair(x, 0))});
  };
  EXPECT_EQ(rounded(1.00390625f), 1);         // halfway: to the even one
  EXPECT_EQ(rounded(1.01171875f), 1.015625);  // likewise
  EXPECT_EQ(rounded(1.00390637f), 1.0078125);
  EXPECT_EQ(rounded(3.4e38f), INFINITY);
  EXPECT_TRUE(std::isnan(rounded(NAN)));
}

TEST(CudaRmsNorm, IsTheFormula) {
  for (const HostOrder order : {kForwards, kBackwards}) expect_rms_norms(HostLauncher{order});
}

TEST(CudaSwiglu, IsTheFormula) {
  expect_swiglus(HostLauncher{kForwards});
}

TEST(CudaRotary, IsTheFormula) {
  expect_rotaries(HostLauncher{kForwards});
}

TEST(CudaCrossEntropy, IsTheFormula) {
  for (const HostOrder order : {kForwards, kBackwards}) expect_cross_entropies(HostLauncher{order});
}

TEST(CudaElementary, RefusesWhatItHasNoKernelFor) {
  const HostLauncher launcher{kForwards};
  kernel::RmsNormForward<float> norm{};
  norm.width = 12;
  EXPECT_FALSE(rms_norm_forward(norm, 1, launcher));
  EXPECT_FALSE(swiglu(kernel::SwigluForward<float>{}, 12, launcher));
  kernel::Rotary<float> heads{};
  heads.half = 12;
  EXPECT_FALSE(rotary(heads, 1, launcher));
  CrossEntropyRows<float> rows{};
  rows.rows = 1, rows.vocabulary = 12;
  EXPECT_FALSE(cross_entropy(rows, launcher));
}

}  // namespace
}  // namespace attnres::gpu::elementary_cuda_test
