// The parts of layers in plain loops over float64, and gradients by central differences.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "attnres/ops/rotary/rotary.h"
#include "attnres/parameters/parameters.h"
#include "tests/noise.h"

namespace attnres::testing {

using Vector = std::vector<double>;

inline Vector as_vector(const at::Tensor& tensor) {
  const at::Tensor values = tensor.detach().to(at::kDouble).contiguous();
  return {values.const_data_ptr<double>(), values.const_data_ptr<double>() + values.numel()};
}

// Rows first .. last - 1 of W x.
inline Vector times(const at::Tensor& W, const Vector& x, size_t first, size_t last) {
  const Vector w = as_vector(W);
  Vector y;
  for (size_t o = first; o < last; ++o) {
    double sum = 0;
    for (size_t i = 0; i < x.size(); ++i) sum += w[o * x.size() + i] * x[i];
    y.push_back(sum);
  }
  return y;
}

inline Vector times(const at::Tensor& W, const Vector& x) {
  return times(W, x, 0, static_cast<size_t>(W.size(0)));
}

inline Vector rms_normed(const Vector& x, const at::Tensor& gain, double eps) {
  const Vector g = as_vector(gain);
  double square = 0;
  for (const double a : x) square += a * a;
  Vector y;
  for (size_t i = 0; i < x.size(); ++i) {
    y.push_back(g[i] * x[i] / std::sqrt(square / static_cast<double>(x.size()) + eps));
  }
  return y;
}

// With channel c and c + K/2 turned by position * f_c.
inline Vector turned(const Vector& x, const RotaryFrequencies& frequencies, double position) {
  Vector y = x;
  const size_t half = x.size() / 2;
  for (size_t c = 0; c < half; ++c) {
    const double angle = position * frequencies.of_pairs[c], m = frequencies.magnitude;
    y[c] = m * (x[c] * std::cos(angle) - x[c + half] * std::sin(angle));
    y[c + half] = m * (x[c + half] * std::cos(angle) + x[c] * std::sin(angle));
  }
  return y;
}

inline double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

inline void add_scaled(double scale, const Vector& x, Vector& sum) {
  for (size_t i = 0; i < x.size(); ++i) sum[i] += scale * x[i];
}

// Numbers that depend on `seed` only.
inline at::Tensor random_tensor(at::IntArrayRef shape, uint64_t seed,
                                at::ScalarType dtype = at::kDouble) {
  const RandomStream random(seed, "layers test");
  at::Tensor values = at::empty(shape, at::kDouble);
  for (int64_t i = 0; i < values.numel(); ++i) {
    values.mutable_data_ptr<double>()[i] = random.normal(i);
  }
  return values.to(dtype);
}

// The parameters of one layer, all of them moved from where they start.
inline const at::Tensor& parameter(const ParameterRegistry& parameters, const char* role) {
  return parameters.find(0, role)->tensor;
}

inline void move_all(const ParameterRegistry& parameters, double scale = 0.3) {
  for (const Parameter& p : parameters.all()) add_noise(p, scale);
}

// Expects the gradients of every parameter that has one, and of x, to be those of central
// differences, and none of them to be zero. `f` reads x and the parameters; float64.
inline void expect_gradients(const std::function<at::Tensor()>& f, at::Tensor x,
                             const ParameterRegistry& parameters) {
  std::vector<std::pair<std::string, at::Tensor>> leaves = {{"x", x}};
  x.set_requires_grad(true);
  for (const Parameter& p : parameters.all()) {
    if (is_differentiated(p.kind)) leaves.emplace_back(p.role, p.tensor);
  }
  const at::Tensor probe = random_tensor(f().sizes(), 7);
  torch::autograd::backward({(f() * probe).sum()});
  const at::NoGradGuard not_recording;
  for (auto& [name, leaf] : leaves) {
    ASSERT_TRUE(leaf.grad().defined()) << name;
    EXPECT_GT(leaf.grad().abs().max().item<double>(), 1e-5) << name;
    const Vector gradient = as_vector(leaf.grad());
    const double tolerance = 2e-7 * std::max(1e-2, leaf.grad().abs().max().item<double>());
    double* values = leaf.mutable_data_ptr<double>();
    for (size_t i = 0; i < gradient.size(); ++i) {
      const double start = values[i], step = 1e-5;
      const auto value_at = [&](double value) {
        values[i] = value;
        return (f() * probe).sum().item<double>();
      };
      const double difference = (value_at(start + step) - value_at(start - step)) / (2 * step);
      values[i] = start;
      ASSERT_NEAR(gradient[i], difference, tolerance) << name << " " << i;
    }
  }
}

}  // namespace attnres::testing
