// Kimi Delta Attention: the layer against its formulas in plain loops in float64, decoding against
// the whole sequence, and what it refuses.
#include "attnres/layers/delta_attention.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <functional>

#include "attnres/support/config.h"
#include "attnres/support/error.h"
#include "tests/layers/side_by_side.h"
#include "tests/noise.h"
#include "tests/ops/every_target.h"
#include "tests/tolerances.h"

namespace attnres::delta_attention_test {
namespace {

using at::Tensor;
using testing::close;
using ::testing::HasSubstr;
using Matrix = std::vector<std::vector<double>>;

constexpr int64_t kWidth = 10, kBatch = 2, kTokens = 70;
constexpr double kNormEps = 1e-5;

struct Variant {
  const char* name;
  DeltaAttentionSettings settings;
};
std::ostream& operator<<(std::ostream& out, const Variant& variant) {
  return out << variant.name;
}
const Variant kVariants[] = {
    {"kimi_linear", {.heads = 2, .head_width = 3}},
    {"kimi_k3", {.heads = 3, .head_width = 4, .gate_lower_bound = -5, .output_gate = "full_rank"}},
    {"wide_convolution", {.heads = 1, .head_width = 6, .conv_width = 7}},
    {"no_convolution", {.heads = 2, .head_width = 3, .conv_width = 1}},
    {"wide_heads", {.heads = 1, .head_width = 72, .gate_lower_bound = -5}}};

// A layer whose every parameter matters, of its own parameters.
struct Layer {
  explicit Layer(const DeltaAttentionSettings& settings, at::ScalarType dtype = at::kDouble)
      : settings(settings),
        parameters(dtype, /*seed=*/5),
        attention(settings, {.width = kWidth, .norm_eps = kNormEps, .init_std = 0.7}, parameters) {
    for (const Parameter& p : parameters.all()) {
      if (p.kind != ParameterKind::matrix) testing::add_noise(p, 0.5);
      // Rates near one, so that earlier tokens are seen.
      if (p.role == "A_log") p.tensor.detach().sub_(2);
    }
  }

  Tensor operator()(const SublayerInput& input, testing::SideBySide* decoded = nullptr) const {
    return testing::forward(attention, input, decoded);
  }

  Tensor of(const char* role) const { return parameters.find(0, role)->tensor.detach(); }

  DeltaAttentionSettings settings;
  ParameterRegistry parameters;
  DeltaAttention attention;
};

Tensor random_x(int64_t seed = 3, int64_t tokens = kTokens) {
  at::manual_seed(seed);
  return at::randn({kBatch, tokens, kWidth}, at::kDouble);
}

Matrix matrix(const Tensor& x) {
  Matrix rows;
  for (int64_t i = 0; i < x.size(0); ++i) {
    const Tensor row = x[i].detach().to(at::kDouble).contiguous();
    rows.emplace_back(row.const_data_ptr<double>(), row.const_data_ptr<double>() + row.numel());
  }
  return rows;
}

std::vector<double> vector(const Tensor& x) {
  return matrix(x.unsqueeze(0))[0];
}

std::vector<double> times(const Matrix& map, const std::vector<double>& x) {
  std::vector<double> y;
  for (const std::vector<double>& row : map) {
    double sum = 0;
    for (size_t i = 0; i < row.size(); ++i) sum += row[i] * x[i];
    y.push_back(sum);
  }
  return y;
}

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

// Convolution and silu of one channel up to token t.
double convolved(const Matrix& projected_TP, const Matrix& kernel_PW, size_t t, size_t channel) {
  const size_t W = kernel_PW[channel].size();
  double sum = 0;
  for (size_t ago = 0; ago < W && ago <= t; ++ago) {
    sum += kernel_PW[channel][W - 1 - ago] * projected_TP[t - ago][channel];
  }
  return sum * sigmoid(sum);
}

double length(const std::vector<double>& x) {
  double sum = 1e-6;
  for (const double number : x) sum += number * number;
  return std::sqrt(sum);
}

// The layer of one sequence, as the header's formulas read.
Tensor plain(const Layer& layer, const Tensor& x_TD, const Tensor& query_TD, const Tensor& key_TD,
             const Tensor& value_TD) {
  const DeltaAttentionSettings& settings = layer.settings;
  const size_t T = x_TD.size(0), H = settings.heads, K = settings.head_width;
  const auto weight = [&](const char* role) { return matrix(layer.of(role)); };
  const auto projected = [&](const Tensor& input_TD, const char* role) {
    Matrix rows;
    for (const std::vector<double>& row : matrix(input_TD)) {
      rows.push_back(times(weight(role), row));
    }
    return rows;
  };
  const Matrix q_in = projected(query_TD, "q_proj"), k_in = projected(key_TD, "k_proj"),
               v_in = projected(value_TD, "v_proj");
  const Matrix q_conv = weight("q_conv1d"), k_conv = weight("k_conv1d"),
               v_conv = weight("v_conv1d");
  const Matrix f_a = weight("f_a_proj"), f_b = weight("f_b_proj"), b = weight("b_proj"),
               o_proj = weight("o_proj");
  const bool low_rank = settings.output_gate == "low_rank";
  const Matrix g_a = low_rank ? weight("g_a_proj") : Matrix();
  const Matrix g = weight(low_rank ? "g_b_proj" : "g_proj");
  const std::vector<double> A_log = vector(layer.of("A_log")),
                            dt_bias = vector(layer.of("dt_bias")),
                            gain = vector(layer.of("o_norm"));

  std::vector<Matrix> states(H, Matrix(K, std::vector<double>(K, 0.0)));
  Tensor y_TD = at::empty({x_TD.size(0), kWidth}, at::kDouble);
  for (size_t t = 0; t < T; ++t) {
    const std::vector<double> x = vector(x_TD[static_cast<int64_t>(t)]);
    const std::vector<double> step = times(f_b, times(f_a, x)), beta = times(b, x),
                              gate = times(g, low_rank ? times(g_a, x) : x);
    std::vector<double> gated;
    for (size_t h = 0; h < H; ++h) {
      Matrix& S = states[h];
      std::vector<double> q, k, v;
      for (size_t i = h * K; i < (h + 1) * K; ++i) {
        q.push_back(convolved(q_in, q_conv, t, i));
        k.push_back(convolved(k_in, k_conv, t, i));
        v.push_back(convolved(v_in, v_conv, t, i));
      }
      const double q_length = length(q), k_length = length(k);
      for (size_t i = 0; i < K; ++i) {
        const double z = step[h * K + i] + dt_bias[h * K + i];
        const double log_decay = settings.gate_lower_bound < 0
                                     ? settings.gate_lower_bound * sigmoid(std::exp(A_log[h]) * z)
                                     : -std::exp(A_log[h]) * std::log1p(std::exp(z));
        for (size_t j = 0; j < K; ++j) S[i][j] *= std::exp(log_decay);
      }
      std::vector<double> o(K, 0.0);
      double squares = 0;
      for (size_t j = 0; j < K; ++j) {
        double recalled = 0;
        for (size_t i = 0; i < K; ++i) recalled += k[i] / k_length * S[i][j];
        const double correction = sigmoid(beta[h]) * (v[j] - recalled);
        for (size_t i = 0; i < K; ++i) {
          S[i][j] += k[i] / k_length * correction;
          o[j] += q[i] / q_length / std::sqrt(double(K)) * S[i][j];
        }
        squares += o[j] * o[j];
      }
      for (size_t j = 0; j < K; ++j) {
        gated.push_back(o[j] / std::sqrt(squares / double(K) + kNormEps) * gain[j] *
                        sigmoid(gate[h * K + j]));
      }
    }
    y_TD[static_cast<int64_t>(t)].copy_(at::tensor(times(o_proj, gated), at::kDouble));
  }
  return y_TD;
}

Tensor plain(const Layer& layer, const SublayerInput& input) {
  const auto own = [&](const Tensor& x) { return x.defined() ? x : input.x; };
  std::vector<Tensor> sequences;
  for (int64_t b = 0; b < input.x.size(0); ++b) {
    sequences.push_back(
        plain(layer, input.x[b], own(input.query)[b], own(input.key)[b], own(input.value)[b]));
  }
  return at::stack(sequences);
}

class DeltaAttentionLayer : public ::testing::TestWithParam<Variant> {
 protected:
  const Layer layer_{GetParam().settings};
};

TEST_P(DeltaAttentionLayer, IsItsFormulas) {
  const Tensor x = random_x();
  const Tensor expected = plain(layer_, {.x = x});
  EXPECT_TRUE(close(layer_({.x = x}), expected, 1e-11));

  const Layer single(GetParam().settings, at::kFloat);
  EXPECT_TRUE(close(single({.x = x.to(at::kFloat)}), plain(single, {.x = x.to(at::kFloat)}), 1e-4));

  // Every parameter shows in what is compared.
  for (const Parameter& p : layer_.parameters.all()) {
    const Tensor value = p.tensor.detach().clone();
    p.tensor.detach().copy_(value.view(-1).roll(1).view_as(value));
    if (at::equal(p.tensor, value)) p.tensor.detach().mul_(1.5);
    EXPECT_FALSE(close(layer_({.x = x}), expected, 1e-4)) << p.role;
    p.tensor.detach().copy_(value);
  }
}

// While decoding one operation does what lies between the maps.
TEST_P(DeltaAttentionLayer, IsTheSameInOneOperationOnEveryInstructionSet) {
  const at::NoGradGuard no_grad;
  const Tensor x = random_x();
  const Tensor expected = plain(layer_, {.x = x});
  const Layer single(GetParam().settings, at::kFloat);
  const Tensor expected_single = plain(single, {.x = x.to(at::kFloat)});
  const auto decoded = [](const Layer& layer, const Tensor& input) {
    testing::SideBySide sequences({layer.attention.kept()}, kBatch, kTokens);
    return layer({.x = input}, &sequences);
  };
  testing::on_every_target([&] {
    EXPECT_TRUE(close(decoded(layer_, x), expected, 1e-11));
    EXPECT_TRUE(close(decoded(single, x.to(at::kFloat)), expected_single, 1e-4));
    EXPECT_FALSE(close(decoded(layer_, x.flip(1)), expected, 1e-4));
  });
}

TEST_P(DeltaAttentionLayer, ReadsInputsOfTheirOwn) {
  const SublayerInput input = {
      .x = random_x(1), .query = random_x(2), .key = random_x(3), .value = random_x(4)};
  EXPECT_TRUE(close(layer_(input), plain(layer_, input), 1e-11));
  EXPECT_FALSE(close(layer_({.x = input.x}), plain(layer_, input), 1e-4));
}

// In pieces that are decoded token by token, and some that are long enough for chunks.
TEST_P(DeltaAttentionLayer, DecodesLikeTheWholeSequence) {
  const at::NoGradGuard no_grad;
  const Tensor x = random_x();
  const Tensor expected = layer_({.x = x});
  for (const std::vector<int64_t>& pieces :
       {std::vector<int64_t>(kTokens, 1), {64, 1, 1, 1, 1, 1, 1}, {1, 2, 67}, {33, 37}}) {
    testing::SideBySide decoded({layer_.attention.kept()}, kBatch, kTokens);
    std::vector<Tensor> y;
    int64_t position = 0;
    for (const int64_t tokens : pieces) {
      y.push_back(layer_({.x = x.narrow(1, position, tokens)}, &decoded));
      position += tokens;
    }
    ASSERT_EQ(position, kTokens);
    EXPECT_TRUE(close(at::cat(y, 1), expected, 1e-11)) << pieces.size() << " pieces";
  }
  EXPECT_FALSE(close(layer_({.x = x.narrow(1, 33, 37)}), expected.narrow(1, 33, 37), 1e-4));
}

TEST_P(DeltaAttentionLayer, IsCausal) {
  Tensor x = random_x();
  const Tensor before = layer_({.x = x});
  for (const int64_t t : {1, 40, 69}) {
    Tensor changed = x.clone();
    changed.narrow(1, t, kTokens - t) += 1;
    const Tensor after = layer_({.x = changed});
    EXPECT_TRUE(at::equal(after.narrow(1, 0, t), before.narrow(1, 0, t))) << t;
    EXPECT_FALSE(close(after.select(1, t), before.select(1, t), 1e-4)) << t;
  }
}

TEST_P(DeltaAttentionLayer, EveryParameterHasAGradient) {
  const Tensor x = random_x();
  const Tensor direction = random_x(9);
  std::vector<Tensor> parameters;
  for (const Parameter& p : layer_.parameters.all()) parameters.push_back(p.tensor);
  const std::vector<Tensor> gradients =
      torch::autograd::grad({(layer_({.x = x}) * direction).sum()}, parameters);
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& p = layer_.parameters.all()[i];
    EXPECT_EQ(gradients[i].eq(0).sum().item<int64_t>(), 0) << p.role;
    // Along the gradient itself, so that every number of it counts.
    const Tensor step = 1e-6 * gradients[i] / gradients[i].norm();
    const auto loss_after = [&](double sign) {
      const at::NoGradGuard no_grad;
      p.tensor.detach().add_(step, sign);
      const double loss = (layer_({.x = x}) * direction).sum().item<double>();
      p.tensor.detach().sub_(step, sign);
      return loss;
    };
    const double slope = (loss_after(1) - loss_after(-1)) / 2e-6;
    EXPECT_NEAR(slope / gradients[i].norm().item<double>(), 1, 1e-6) << p.role;
  }
}

INSTANTIATE_TEST_SUITE_P(Variants, DeltaAttentionLayer, ::testing::ValuesIn(kVariants),
                         [](const auto& info) { return info.param.name; });

TEST(DeltaAttention, StartsAsItSays) {
  ParameterRegistry parameters(at::kDouble, 1);
  const DeltaAttentionSettings settings = {.heads = 16, .head_width = 64};
  const DeltaAttention attention(
      settings, {.width = 32, .needs = {.init_gain = 3, .output_init_gain = 5}}, parameters);
  const auto of = [&](const char* role) { return parameters.find(0, role)->tensor.detach(); };
  const auto lies_in = [](const Tensor& x, double low, double high) {
    const double least = x.min().item<double>(), most = x.max().item<double>();
    const double margin = 0.2 * (high - low);
    EXPECT_TRUE(low <= least && least < low + margin && high - margin < most && most <= high)
        << least << " to " << most;
  };
  lies_in(of("A_log").exp(), 1, 16);
  lies_in(at::softplus(of("dt_bias")).log10(), -3, -1);
  lies_in(of("v_conv1d"), -0.5, 0.5);
  EXPECT_TRUE(of("o_norm").eq(1).all().item<bool>());
  for (const auto& [role, gain] : {std::pair{"q_proj", 1},
                                   {"k_proj", 1},
                                   {"v_proj", 3},
                                   {"f_b_proj", 1},
                                   {"g_b_proj", 1},
                                   {"o_proj", 15}}) {
    EXPECT_NEAR(of(role).std().item<double>() / (0.02 * gain), 1, 0.03) << role;
  }
}

TEST(DeltaAttention, KindsDecideWhoMovesAParameter) {
  const Layer layer(kVariants[0].settings);
  for (const Parameter& p : layer.parameters.all()) {
    const bool map = p.role.ends_with("_proj"), kernel = p.role.ends_with("_conv1d");
    EXPECT_EQ(p.kind, map                  ? ParameterKind::matrix
                      : kernel             ? ParameterKind::convolution
                      : p.role == "o_norm" ? ParameterKind::norm_gain
                                           : ParameterKind::decay)
        << p.role;
  }
}

std::string refusal(const std::function<void()>& action) {
  try {
    action();
  } catch (const UsageError& e) {
    return e.what();
  }
  return "accepted";
}

TEST(DeltaAttention, ResolvesItsSettings) {
  DeltaAttentionSettings settings;
  settings.resolve(12, 3, "kda");
  EXPECT_EQ(settings.heads, 3);
  EXPECT_EQ(settings.head_width, 4);
  settings = {.heads = 5, .head_width = 7};
  settings.resolve(12, 3, "kda");
  EXPECT_EQ(settings.heads, 5);
  EXPECT_EQ(settings.head_width, 7);

  const auto refused = [](DeltaAttentionSettings wrong) {
    return refusal([&] {
      check_config(wrong, "model.kda");
      wrong.resolve(12, 3, "model.kda");
    });
  };
  EXPECT_THAT(refused({.heads = -1}), HasSubstr("model.kda.heads: expected"));
  EXPECT_THAT(refused({.head_width = -1}), HasSubstr("model.kda.head_width: expected"));
  EXPECT_THAT(refused({.heads = 5}), HasSubstr("model.kda.head_width: the model's width of 12"));
  EXPECT_THAT(refused({.conv_width = 0}), HasSubstr("model.kda.conv_width: expected"));
  EXPECT_THAT(refused({.gate_lower_bound = 1}), HasSubstr("model.kda.gate_lower_bound: expected"));
  EXPECT_THAT(refused({.gate_lower_bound = -INFINITY}), HasSubstr("model.kda.gate_lower_bound"));
  EXPECT_THAT(refused({.output_gate = "none"}), HasSubstr("model.kda.output_gate: expected"));
}

TEST(DeltaAttention, RefusesToAdaptHeads) {
  ParameterRegistry parameters(at::kDouble, 1);
  EXPECT_THAT(refusal([&] {
                DeltaAttention(kVariants[0].settings,
                               {.width = kWidth, .needs = {.adapt_heads = true}}, parameters);
              }),
              HasSubstr("delta attention"));
}

}  // namespace
}  // namespace attnres::delta_attention_test
