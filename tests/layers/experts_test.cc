// Experts against their formulas in plain loops over tokens: as Kimi Linear 48B has them and as
// Kimi K3.
#include "attnres/layers/experts.h"

#include <ATen/Parallel.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "attnres/support/config.h"
#include "attnres/support/error.h"
#include "tests/layers/plain_layers.h"
#include "tests/tolerances.h"

namespace attnres::experts_test {
namespace {

using testing::add_scaled;
using testing::as_vector;
using testing::close;
using ::testing::HasSubstr;
using testing::parameter;
using testing::random_tensor;
using testing::sigmoid;
using testing::times;
using testing::Vector;

constexpr int64_t kWidth = 6, kCount = 6, kTokens = 12;
constexpr double kNormEps = 1e-2;  // large: its part of the result must show

struct Variant {
  const char* name;
  ExpertsSettings settings;
  Activation activation;
};
const Variant kVariants[] = {
    {"48B", {.count = kCount, .chosen = 2, .width = 4, .shared = 1, .scaling = 2.446}, {}},
    {"K3",
     {.count = kCount, .chosen = 3, .width = 4, .shared = 2, .scaling = 1.5, .latent_width = 3},
     {"situ", 1.2, 2}},
    {"OnlyRouted", {.count = kCount, .chosen = 1, .width = 3, .shared = 0}, {}},
    {"NotRenormalized",
     {.count = kCount, .chosen = 2, .width = 4, .scaling = 2.446, .renormalize = false},
     {}},
    {"Grouped",
     {.count = kCount, .chosen = 2, .width = 4, .scaling = 1.7, .groups = 3, .chosen_groups = 2},
     {}},
    {"LatentWithoutNorm",
     {.count = kCount, .chosen = 2, .width = 4, .latent_width = 3, .latent_norm = false},
     {}},
    {"Softmax", {.count = kCount, .chosen = 3, .width = 4, .scores = "softmax"}, {}},
    {"SoftmaxNotRenormalized",
     {.count = kCount, .chosen = 2, .width = 4, .renormalize = false, .scores = "softmax"},
     {}},
    {"GptOss",
     {.count = kCount,
      .chosen = 2,
      .width = 4,
      .shared = 0,
      .scores = "softmax",
      .router_bias = true,
      .bias = true},
     {.type = "swiglu_oai", .limit = 0.6}},
    {"OneNotRenormalized", {.count = kCount, .chosen = 1, .width = 3, .renormalize = false}, {}},
};

struct Bench {
  explicit Bench(const Variant& variant, at::ScalarType dtype = at::kDouble)
      : parameters(dtype, 1),
        layer(variant.settings, variant.activation,
              {.width = kWidth, .norm_eps = kNormEps, .init_std = 0.5}, parameters) {
    testing::move_all(parameters);
  }
  SublayerOutput operator()(const at::Tensor& x) const { return layer.forward({.x = x}, {}); }
  at::Tensor bias() const { return parameter(parameters, "e_score_correction_bias"); }
  ParameterRegistry parameters;
  Experts layer;
};

struct Mistakes {
  bool biased_weights = false, chosen_without_bias = false, norm_left_out = false,
       other_normalization = false, no_groups = false, biases_left_out = false;
};

double activated(const Activation& activation, double gate, double up) {
  if (activation.type == "silu") return gate * sigmoid(gate) * up;
  if (activation.type == "swiglu_oai") {
    const double g = std::min(gate, activation.limit),
                 u = std::clamp(up, -activation.limit, activation.limit);
    return g * sigmoid(1.702 * g) * (u + 1);
  }
  const double beta = activation.beta, linear = activation.linear_beta;
  return beta * std::tanh(gate / beta) * sigmoid(gate) * linear * std::tanh(up / linear);
}

struct Plain {
  Vector y;
  std::vector<size_t> chosen;
  double margin = 0;  // by which the last of the chosen was better than the first of the others
};

std::vector<size_t> falling_order(const Vector& numbers) {
  std::vector<size_t> order(numbers.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return numbers[a] > numbers[b]; });
  return order;
}

// Lowers the scores of the groups that are not chosen, and gives the margin of that choice.
double keep_best_groups(const ExpertsSettings& s, Vector& criterion) {
  const size_t size = criterion.size() / s.groups;
  Vector sums;
  for (size_t g = 0; g < static_cast<size_t>(s.groups); ++g) {
    Vector group(criterion.begin() + g * size, criterion.begin() + (g + 1) * size);
    std::sort(group.rbegin(), group.rend());
    sums.push_back(group[0] + group[1]);
  }
  const std::vector<size_t> order = falling_order(sums);
  for (size_t i = s.chosen_groups; i < order.size(); ++i) {
    for (size_t e = 0; e < size; ++e) criterion[order[i] * size + e] = -1e9;
  }
  return sums[order[s.chosen_groups - 1]] - sums[order[s.chosen_groups]];
}

Plain plain(const Variant& variant, const ParameterRegistry& parameters, const Vector& x,
            const Mistakes& wrong = {}) {
  const ExpertsSettings& s = variant.settings;
  const auto weight = [&](const char* role) { return parameter(parameters, role); };
  const auto feed_forward = [&](const at::Tensor& w1, const at::Tensor& w2, const at::Tensor& w3,
                                const Vector& input, std::optional<int64_t> expert = {}) {
    const auto map = [&](const char* bias, const at::Tensor& w, const Vector& of) {
      Vector y = times(w, of);
      if (s.bias && expert && !wrong.biases_left_out)
        add_scaled(1, as_vector(weight(bias)[*expert]), y);
      return y;
    };
    const Vector gate = map("w1_bias", w1, input), up = map("w3_bias", w3, input);
    Vector hidden;
    for (size_t i = 0; i < gate.size(); ++i) {
      hidden.push_back(activated(variant.activation, gate[i], up[i]));
    }
    return map("w2_bias", w2, hidden);
  };

  Vector scores = times(weight("gate"), x);
  if (s.router_bias && !wrong.biases_left_out)
    add_scaled(1, as_vector(weight("gate_bias")), scores);
  const Vector bias = as_vector(weight("e_score_correction_bias"));
  double all_exponentials = 0;
  for (const double score : scores) all_exponentials += std::exp(score);
  for (double& score : scores) {
    score = s.scores == "softmax" ? std::exp(score) / all_exponentials : sigmoid(score);
  }
  Vector biased = scores;
  add_scaled(1, bias, biased);
  Vector criterion = wrong.chosen_without_bias ? scores : biased;
  Plain result;
  result.margin = 1;
  if (s.groups > 1 && !wrong.no_groups) result.margin = keep_best_groups(s, criterion);
  const std::vector<size_t> all = falling_order(criterion);
  std::vector<size_t> order = all;
  result.margin = std::min(result.margin, criterion[all[s.chosen - 1]] - criterion[all[s.chosen]]);
  order.resize(s.chosen);
  result.chosen = order;

  const Vector& weights = wrong.biased_weights ? biased : scores;
  double total = 0;
  for (const size_t e : order) total += weights[e];
  if (s.renormalize == wrong.other_normalization) total = 1;
  const bool latent = s.latent_width > 0;
  const Vector input = latent ? times(weight("routed_expert_down_proj"), x) : x;
  Vector sum(input.size());
  for (const size_t e : order) {
    const auto i = static_cast<int64_t>(e);
    add_scaled(s.scaling * weights[e] / total,
               feed_forward(weight("w1")[i], weight("w2")[i], weight("w3")[i], input, i), sum);
  }
  if (latent) {
    if (s.latent_norm && !wrong.norm_left_out) {
      sum = testing::rms_normed(sum, weight("routed_expert_norm"), kNormEps);
    }
    sum = times(weight("routed_expert_up_proj"), sum);
  }
  if (s.shared > 0) {
    add_scaled(1, feed_forward(weight("shared_w1"), weight("shared_w2"), weight("shared_w3"), x),
               sum);
  }
  result.y = sum;
  return result;
}

struct PlainBatch {
  at::Tensor y, load;
  double margin = 1;
};

PlainBatch plain_batch(const Variant& variant, const ParameterRegistry& parameters,
                       const at::Tensor& x, const Mistakes& wrong = {}) {
  Vector y;
  PlainBatch batch;
  batch.load = at::zeros({kCount}, at::kLong);
  for (const at::Tensor& token : x.reshape({-1, kWidth}).unbind(0)) {
    const Plain one = plain(variant, parameters, as_vector(token), wrong);
    y.insert(y.end(), one.y.begin(), one.y.end());
    for (const size_t e : one.chosen) batch.load[static_cast<int64_t>(e)] += 1;
    batch.margin = std::min(batch.margin, one.margin);
  }
  batch.y = at::tensor(y, at::kDouble).view(x.sizes());
  return batch;
}

TEST(Experts, AreTheirFormula) {
  for (const Variant& variant : kVariants) {
    for (const auto& [dtype, tolerance] : {std::pair{at::kDouble, 1e-12}, {at::kFloat, 2e-5}}) {
      const Bench bench(variant, dtype);
      for (const int64_t tokens : {1, 2, 24}) {
        const at::Tensor x = random_tensor({2 * tokens, kWidth}, 1, dtype);
        const auto [y, load] = bench(x);
        const auto expected = [&](const Mistakes& wrong) {
          return plain_batch(variant, bench.parameters, x, wrong);
        };
        EXPECT_TRUE(close(y, expected({}).y, tolerance)) << variant.name << " " << tokens;
        EXPECT_EQ(load.scalar_type(), at::kLong);
        EXPECT_TRUE(load.equal(expected({}).load)) << variant.name;
        EXPECT_EQ(load.sum().item<int64_t>(), 2 * tokens * variant.settings.chosen);
        if (tokens < 24) continue;
        EXPECT_FALSE(close(y, expected({.other_normalization = true}).y, 1e-3)) << variant.name;
        EXPECT_FALSE(close(y, expected({.chosen_without_bias = true}).y, 1e-3)) << variant.name;
        if (variant.settings.chosen > 1) {
          EXPECT_FALSE(close(y, expected({.biased_weights = true}).y, 1e-3)) << variant.name;
        }
        EXPECT_NE(bool(close(y, expected({.biases_left_out = true}).y, 1e-3)),
                  variant.settings.bias)
            << variant.name;
        const bool is_grouped = variant.settings.groups > 1;
        EXPECT_NE(bool(close(y, expected({.no_groups = true}).y, 1e-3)), is_grouped)
            << variant.name;
        if (variant.settings.latent_width > 0 && variant.settings.latent_norm) {
          EXPECT_FALSE(close(y, expected({.norm_left_out = true}).y, 1e-3)) << variant.name;
        }
      }
    }
  }
}

TEST(Experts, GradientsAreThoseOfDifferences) {
  for (Variant variant : kVariants) {
    SCOPED_TRACE(variant.name);
    // The renormalised weight of one expert is a constant, and the router learns nothing.
    if (variant.settings.renormalize) {
      variant.settings.chosen = std::max<int64_t>(variant.settings.chosen, 2);
    }
    const Bench bench(variant);
    const at::Tensor x = random_tensor({kTokens, kWidth}, 2);
    ASSERT_GT(plain_batch(variant, bench.parameters, x).margin, 1e-3);  // no choice changes
    testing::expect_gradients([&] { return bench(x).y; }, x, bench.parameters);
    EXPECT_FALSE(bench.bias().requires_grad());
  }
}

TEST(Experts, BiasChangesTheChoiceAndNotTheWeights) {
  const Bench bench(kVariants[0]);
  const at::Tensor x = random_tensor({kTokens, kWidth}, 3);
  bench.bias().zero_();
  const SublayerOutput unbiased = bench(x);
  bench.bias().fill_(0.7);  // of all alike: the order stays
  EXPECT_TRUE(bench(x).y.equal(unbiased.y));
  bench.bias().zero_().narrow(0, 1, 1).fill_(2);
  const SublayerOutput preferred = bench(x);
  EXPECT_LT(unbiased.expert_load[1].item<int64_t>(), kTokens);
  EXPECT_EQ(preferred.expert_load[1].item<int64_t>(), kTokens);
  EXPECT_TRUE(close(preferred.y, plain_batch(kVariants[0], bench.parameters, x).y, 1e-12));
  EXPECT_FALSE(close(preferred.y,
                     plain_batch(kVariants[0], bench.parameters, x, {.biased_weights = true}).y,
                     1e-3));
}

TEST(Experts, WithoutATokenGetNoGradient) {
  const Bench bench(kVariants[0]);
  bench.bias()[3] = -10;
  const at::Tensor x = random_tensor({kTokens, kWidth}, 4);
  const SublayerOutput output = bench(x);
  EXPECT_EQ(output.expert_load[3].item<int64_t>(), 0);
  torch::autograd::backward({output.y.square().sum()});
  for (const char* role : {"w1", "w2", "w3"}) {
    const at::Tensor of_expert = parameter(bench.parameters, role).grad().abs().amax({1, 2});
    EXPECT_EQ(of_expert[3].item<double>(), 0) << role;
    EXPECT_EQ(of_expert.gt(0).sum().item<int64_t>(), output.expert_load.gt(0).sum().item<int64_t>())
        << role;
  }
}

// Not computed: not even numbers that are none would show.
TEST(Experts, WithoutATokenAreNotComputed) {
  const Bench bench(kVariants[1]);
  bench.bias()[2] = -10;
  const at::Tensor x = random_tensor({kTokens, kWidth}, 4), y = bench(x).y;
  for (const char* role : {"w1", "w2", "w3"}) {
    parameter(bench.parameters, role).detach().narrow(0, 2, 1).fill_(NAN);
  }
  EXPECT_TRUE(bench(x).y.equal(y));
  bench.bias()[2] = 10;
  EXPECT_FALSE(bench(x).y.isfinite().any().item<bool>());
}

// Rows that fill up a call, in its middle and at its end: as if they were not there.
TEST(Experts, AreNotChosenByRowsThatFillUp) {
  const std::vector<FillerRows> fillers = {{.first = 3, .count = 2}, {.first = 8, .count = 4}};
  const at::Tensor text = at::tensor({0, 1, 2, 5, 6, 7}, at::kLong);
  for (const Variant& variant : kVariants) {
    SCOPED_TRACE(variant.name);
    const Bench bench(variant);
    const auto run = [&](const at::Tensor& x, const std::vector<FillerRows>& rows) {
      const auto spans =
          std::make_shared<Spans>(std::vector<Span>{{.tokens = x.size(0)}}, nullptr, rows);
      return bench.layer.forward({.x = x}, {spans});
    };
    const auto gradients = [&](const at::Tensor& sum) {
      torch::autograd::backward({sum});
      std::map<std::string, at::Tensor> found;
      for (const Parameter& p : bench.parameters.all()) {
        at::Tensor& gradient = p.tensor.mutable_grad();
        if (gradient.defined()) found[p.role] = std::exchange(gradient, at::Tensor());
      }
      return found;
    };
    const at::Tensor x = random_tensor({12, kWidth}, 7), of_text = x.index_select(0, text);
    const PlainBatch expected = plain_batch(variant, bench.parameters, of_text);
    const SublayerOutput filled = run(x, fillers), alone = run(of_text, {});
    EXPECT_TRUE(filled.expert_load.equal(expected.load));
    EXPECT_TRUE(close(filled.y.index_select(0, text), expected.y, 1e-12));
    // A loss may look at no more than the text.
    const auto here = gradients(filled.y.index_select(0, text).square().sum());
    const auto there = gradients(alone.y.square().sum());
    ASSERT_EQ(here.size(), there.size());
    for (const auto& [role, gradient] : there) {
      EXPECT_TRUE(close(here.at(role), gradient, 1e-12)) << role;
    }
    // Negative control: they choose, unless it is said that they fill up.
    EXPECT_FALSE(run(x, {}).expert_load.equal(expected.load));
  }
}

TEST(Experts, ResultsDoNotDependOnThreads) {
  const Bench bench(kVariants[1], at::kFloat);
  const at::Tensor x = random_tensor({1200, kWidth}, 5, at::kFloat);
  const int threads = at::get_num_threads();
  std::vector<at::Tensor> outputs, gradients;
  for (const int n : {1, 3, 1}) {
    at::set_num_threads(n);
    at::Tensor input = x.clone().set_requires_grad(true);
    outputs.push_back(bench(input).y);
    torch::autograd::backward({outputs.back().square().sum()});
    gradients.push_back(input.grad());
  }
  at::set_num_threads(threads);
  for (const size_t i : {1, 2}) {
    EXPECT_TRUE(outputs[i].equal(outputs[0])) << i;
    EXPECT_TRUE(gradients[i].equal(gradients[0])) << i;
  }
}

TEST(Balance, MovesAgainstTheLoad) {
  at::Tensor bias = at::tensor({0.5, 0.0, -1.0, 2.0}, at::kDouble);
  balance(bias, at::tensor({1, 5, 3, 3}, at::kLong), 0.25);  // of 3 on average
  EXPECT_EQ(as_vector(bias), (Vector{0.75, -0.25, -1.0, 2.0}));
}

TEST(Balance, BringsARouterTowardsEqualLoad) {
  const Bench bench(kVariants[0]);
  at::Tensor bias = bench.bias();
  bias.zero_()[2] = 0.8;  // nearly every token's choice
  const at::Tensor x = random_tensor({400, kWidth}, 6);
  const auto unbalance = [&] {  // the largest load of the mean
    const at::Tensor load = bench(x).expert_load.to(at::kDouble);
    return (load.max() / load.mean()).item<double>();
  };
  EXPECT_GT(unbalance(), 2);
  for (int step = 0; step < 200; ++step) balance(bias, bench(x).expert_load, 0.01);
  EXPECT_LT(unbalance(), 1.2);
}

TEST(Experts, ParametersAreWhatTheyAre) {
  const auto parameters_of = [](ParameterRegistry& parameters, const Variant& variant,
                                const SublayerNeeds& needs) {
    Experts(variant.settings, variant.activation, {.width = kWidth, .needs = needs}, parameters);
  };
  for (const Variant& variant : kVariants) {
    ParameterRegistry plain(at::kDouble, 1), scaled(at::kDouble, 1);
    parameters_of(plain, variant, {});
    parameters_of(scaled, variant, {.init_gain = 0.5, .output_init_gain = 0.5});
    const std::string last = variant.settings.latent_width > 0 ? "routed_expert_up_proj" : "w2";
    for (size_t i = 0; i < plain.all().size(); ++i) {
      const Parameter& p = plain.all()[i];
      const auto gain = [&] {
        return (scaled.all()[i].tensor / p.tensor).detach().flatten()[0].item<double>();
      };
      if (p.role == "e_score_correction_bias") {
        EXPECT_EQ(p.kind, ParameterKind::router_bias);
        EXPECT_EQ(p.tensor.abs().max().item<double>(), 0);
      } else if (p.role.ends_with("_bias")) {
        EXPECT_EQ(p.kind, ParameterKind::bias);
        EXPECT_EQ(p.tensor.abs().max().item<double>(), 0);
      } else if (p.role == "routed_expert_norm") {
        EXPECT_EQ(p.kind, ParameterKind::norm_gain);
      } else {
        EXPECT_EQ(p.kind, ParameterKind::matrix) << p.role;
        const double expected = p.role == "gate"                          ? 1
                                : p.role == last || p.role == "shared_w2" ? 0.25
                                                                          : 0.5;
        EXPECT_DOUBLE_EQ(gain(), expected) << p.role;
      }
    }
  }
}

TEST(Experts, FillInAndRefuseSettings) {
  ExpertsSettings settings = {.count = 8};
  settings.resolve(96, "model.experts");
  EXPECT_EQ(settings.width, 48);
  ExpertsSettings none;
  none.resolve(96, "model.experts");  // dense

  const auto message = [](ExpertsSettings bad) -> std::string {
    try {
      check_config(bad, "experts");
      bad.resolve(96, "experts");
    } catch (const UsageError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(message({.count = -1}),
              HasSubstr("experts.count: expected a whole number from 0 to 1048576, got -1"));
  EXPECT_THAT(message({.count = 3, .chosen = 4}),
              HasSubstr("experts.chosen: 4 cannot be chosen of 3 experts"));
  EXPECT_THAT(message({.count = 3, .chosen = 0}), HasSubstr("experts.chosen"));
  EXPECT_THAT(message({.count = 3, .width = -1}), HasSubstr("experts.width"));
  EXPECT_THAT(message({.count = 3, .shared = -1}), HasSubstr("experts.shared"));
  EXPECT_THAT(message({.count = 3, .dense_layers = -1}), HasSubstr("experts.dense_layers"));
  EXPECT_THAT(message({.count = 3, .scaling = 0}), HasSubstr("experts.scaling"));
  EXPECT_THAT(message({.count = 6, .groups = 4}),
              HasSubstr("experts.groups: 6 experts are not 4 groups of two or more"));
  EXPECT_THAT(message({.count = 6, .groups = 3, .chosen_groups = 4}),
              HasSubstr("experts.chosen_groups"));
  EXPECT_THAT(message({.count = 6, .chosen = 3, .groups = 3, .chosen_groups = 1}),
              HasSubstr("experts.chosen: 3 cannot be chosen of 1 groups of 2 experts"));
  EXPECT_THAT(message({.count = 3, .latent_width = -5}), HasSubstr("experts.latent_width"));
}

}  // namespace
}  // namespace attnres::experts_test
