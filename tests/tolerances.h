// What "equal" means in every test: one tolerance per dtype, relative to the largest magnitude of
// the expected values.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace attnres::testing {

// The tolerance of a chain of operations on numbers of this dtype.
inline double tolerance(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return 1e-12;
    case at::kFloat:
      return 1e-5;
    case at::kHalf:
      return 2e-3;
    case at::kBFloat16:
      return 1e-2;
    default:
      return 0;
  }
}

// Where all expected values are smaller than this, errors are relative to it: a zero that is the
// difference of larger numbers has their roundings.
inline constexpr double kSmallestMagnitude = 1e-3;

// max |actual - expected| / max(smallest, max |expected|); infinite where either is not a number.
// Fails the test where their shapes differ. Where more is known of the terms that cancel in what is
// expected, `smallest` is their magnitude.
inline double relative_error(const at::Tensor& actual, const at::Tensor& expected,
                             double smallest = kSmallestMagnitude) {
  EXPECT_EQ(actual.sizes(), expected.sizes());
  if (actual.sizes() != expected.sizes()) return INFINITY;
  if (expected.numel() == 0) return 0;
  const at::Tensor a = actual.detach().to(at::kDouble), e = expected.detach().to(at::kDouble);
  const at::Tensor difference = (a - e).abs().nan_to_num(INFINITY);
  return difference.max().item<double>() / std::max(smallest, e.abs().max().item<double>());
}

// EXPECT_TRUE(close(actual, expected)), with the tolerance of the actual values' dtype;
// EXPECT_FALSE for negative controls, which must differ in finite numbers: another shape or a NaN
// fails the test either way.
inline ::testing::AssertionResult close(const at::Tensor& actual, const at::Tensor& expected,
                                        double tolerance, double smallest = kSmallestMagnitude) {
  const double error = relative_error(actual, expected, smallest);
  EXPECT_LT(error, INFINITY);
  return (error <= tolerance ? ::testing::AssertionSuccess() : ::testing::AssertionFailure())
         << "relative error " << error << ", tolerance " << tolerance;
}

inline ::testing::AssertionResult close(const at::Tensor& actual, const at::Tensor& expected) {
  return close(actual, expected, tolerance(actual.scalar_type()));
}

}  // namespace attnres::testing
