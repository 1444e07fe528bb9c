// The reference, against published numbers and the complex step.
#include <gtest/gtest.h>

#include <complex>

#include "attnres/ops/depth_attention/reference.h"
#include "attnres/support/random.h"

namespace attnres::reference {
namespace {

using Complex = std::complex<double>;

constexpr double kEps = 1e-6;
constexpr double kStep = 1e-100;

template <class Scalar>
Vector<Scalar> random_vector(size_t size, double scale, uint64_t seed) {
  const RandomStream random(seed, "reference");
  Vector<Scalar> v(size);
  for (size_t k = 0; k < size; ++k) v[k] = scale * random.normal(k);
  return v;
}

TEST(DepthAttentionReference, PublishedNumbers) {
  const Vector<double> w = {2, 0, 0, 0}, one = {1, 1, 1, 1};
  const Matrix<double> basis = {{1, 0, 0, 0}, {0, 1, 0, 0}};
  const Vector<double> expected = {0.9820136, 0.0179864, 0, 0};
  const auto result = depth_attention(basis, w, one, kEps);
  for (size_t k = 0; k < 4; ++k) EXPECT_NEAR(result.h_D[k], expected[k], 1e-6);
}

// f(x + i step) = f(x) + i step f'(x) for every analytic f: the derivative to rounding.
TEST(DepthAttentionReference, BackwardIsTheComplexStep) {
  const size_t N = 4, D = 5;
  Matrix<Complex> v;
  for (size_t i = 0; i < N; ++i) v.push_back(random_vector<Complex>(D, 1.5, i));
  Vector<Complex> w = random_vector<Complex>(D, 1, 10), g = random_vector<Complex>(D, 1, 11);
  const auto dh = random_vector<Complex>(D, 1, 12), dalpha = random_vector<Complex>(N, 1, 13);

  const auto derivative = [&](Complex& x) {
    x += Complex(0, kStep);
    const auto result = depth_attention(v, w, g, kEps);
    x = x.real();
    return std::imag(dot(dh, result.h_D) + dot(dalpha, result.alpha_N)) / kStep;
  };
  const auto grad = depth_attention_backward(v, w, g, kEps, dh, dalpha);
  for (size_t k = 0; k < D; ++k) {
    for (size_t i = 0; i < N; ++i) {
      EXPECT_NEAR(grad.sources_ND[i][k].real(), derivative(v[i][k]), 1e-12);
    }
    EXPECT_NEAR(grad.query_D[k].real(), derivative(w[k]), 1e-12);
    EXPECT_NEAR(grad.key_gain_D[k].real(), derivative(g[k]), 1e-12);
  }
}

}  // namespace
}  // namespace attnres::reference
