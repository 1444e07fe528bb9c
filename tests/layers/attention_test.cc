// Grouped-query attention, in a window and without positions too, against its formula in plain
// loops.
#include "attnres/layers/attention.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/layers/plain_layers.h"
#include "tests/tolerances.h"

namespace attnres::attention_test {
namespace {

using testing::add_scaled;
using testing::as_vector;
using testing::close;
using testing::move_all;
using testing::parameter;
using testing::random_tensor;
using testing::rms_normed;
using testing::times;
using testing::Vector;

constexpr int64_t kWidth = 10, kTokens = 9;
constexpr double kEps = 1e-3;

AttentionShape shape_of_test() {
  return {.heads = 4, .kv_heads = 2, .head_width = 6, .rotary = rotary_frequencies(6, 7)};
}

struct PlainAttention {
  const AttentionShape& shape;
  const ParameterRegistry& parameters;

  // Head h of a map for one token: W x + b, normed and turned where it has a norm.
  Vector head(const std::string& map, const Vector& x, int64_t h, int64_t position) const {
    const auto K = static_cast<size_t>(shape.head_width), first = static_cast<size_t>(h) * K;
    Vector y = times(parameter(parameters, (map + "_proj").c_str()), x, first, first + K);
    if (shape.settings.qkv_bias) {
      const Vector bias = as_vector(parameter(parameters, (map + "_bias").c_str()));
      for (size_t k = 0; k < K; ++k) y[k] += bias[first + k];
    }
    if (map == "v") return y;
    if (shape.settings.qk_norm) {
      y = rms_normed(y, parameter(parameters, (map + "_layernorm").c_str()), kEps);
    }
    return shape.rotary ? testing::turned(y, *shape.rotary, static_cast<double>(position)) : y;
  }

  Vector operator()(const std::vector<Vector>& x, int64_t t) const {
    const auto K = static_cast<size_t>(shape.head_width);
    const double scale = shape.settings.score_scale > 0 ? shape.settings.score_scale
                                                        : 1 / std::sqrt(static_cast<double>(K));
    Vector all;
    for (int64_t h = 0; h < shape.heads; ++h) {
      const int64_t shared = h / (shape.heads / shape.kv_heads);
      const int64_t first = shape.window == 0 ? 0 : std::max<int64_t>(0, t - shape.window + 1);
      const Vector q = head("q", x[t], h, t);
      Vector o(K, 0);
      double sum = 0;
      for (int64_t s = first; s <= t; ++s) {
        const Vector k = head("k", x[s], shared, s);
        double score = 0;
        for (size_t c = 0; c < K; ++c) score += q[c] * k[c];
        const double weight = std::exp(scale * score);
        sum += weight;
        add_scaled(weight, head("v", x[s], shared, s), o);
      }
      for (const double number : o) all.push_back(number / sum);
    }
    return times(parameter(parameters, "o_proj"), all);
  }
};

at::Tensor plain(const AttentionShape& shape, const ParameterRegistry& parameters,
                 const at::Tensor& x_TD) {
  std::vector<Vector> rows;
  for (int64_t t = 0; t < x_TD.size(0); ++t) rows.push_back(as_vector(x_TD[t]));
  Vector all;
  for (int64_t t = 0; t < x_TD.size(0); ++t) {
    const Vector y = PlainAttention{shape, parameters}(rows, t);
    all.insert(all.end(), y.begin(), y.end());
  }
  return at::tensor(all, at::kDouble).view(x_TD.sizes());
}

TEST(Attention, IsItsFormulaWithWhatModelsAdd) {
  const at::NoGradGuard no_grad;
  std::vector<AttentionShape> shapes(8, shape_of_test());
  shapes[1].settings.qkv_bias = true;
  shapes[2].settings.qk_norm = true;
  shapes[3].settings.score_scale = 0.9;
  shapes[4].window = 3;
  shapes[5].rotary.reset();
  shapes[6].rotary->magnitude = 1.4;
  shapes[7] = shapes[4];
  shapes[7].settings.qkv_bias = shapes[7].settings.qk_norm = true;
  shapes[7].settings.score_scale = 0.9;
  const at::Tensor x_TD = random_tensor({kTokens, kWidth}, 1);
  for (const AttentionShape& shape : shapes) {
    ParameterRegistry parameters(at::kDouble, /*seed=*/1);
    const Attention attention(shape, {.width = kWidth, .norm_eps = kEps, .init_std = 0.3},
                              parameters);
    move_all(parameters);
    const at::Tensor y = attention.forward({.x = x_TD}, {}).y;
    EXPECT_TRUE(close(y, plain(shape, parameters, x_TD)));
    // What each adds matters.
    for (int changed = 0; changed < 5; ++changed) {
      AttentionShape other = shape;
      if (changed == 0) other.window = shape.window == 0 ? 3 : shape.window + 1;
      if (changed == 1) other.settings.score_scale = shape.settings.score_scale > 0 ? 0 : 0.9;
      if (changed == 2) other.rotary = rotary_frequencies(6, shape.rotary ? 9 : 7);
      if (changed == 3 && shape.settings.qkv_bias) other.settings.qkv_bias = false;
      if (changed == 4 && shape.settings.qk_norm) other.settings.qk_norm = false;
      const bool is_same =
          (changed == 3 && !shape.settings.qkv_bias) || (changed == 4 && !shape.settings.qk_norm);
      EXPECT_EQ(close(y, plain(other, parameters, x_TD)), is_same) << changed;
    }
  }
}

TEST(Attention, CountsTheKeysThatAreSeen) {
  AttentionShape shape = shape_of_test();
  ParameterRegistry parameters(at::kDouble, std::nullopt, at::kMeta);
  const auto multiply_adds = [&](int64_t window, int64_t context) {
    shape.window = window;
    const auto site = static_cast<int>(parameters.all().size());
    return Attention(shape, {.width = kWidth, .site = site}, parameters)
        .cost(context)
        .multiply_adds;
  };
  const double channels = 4 * 6;
  EXPECT_EQ(multiply_adds(0, 100), 100 * channels);
  EXPECT_EQ(multiply_adds(100, 100), 100 * channels);
  // The first nine tokens see fewer than 10 keys: 10 - 10 * 10 / (2 * 100).
  EXPECT_EQ(multiply_adds(10, 100), 2 * 9.5 * channels);
}

}  // namespace
}  // namespace attnres::attention_test
