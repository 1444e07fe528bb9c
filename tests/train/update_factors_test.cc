#include "attnres/train/recipe/update_factors.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "attnres/support/error.h"
#include "attnres/train/optimizers/optimizer.h"
#include "tests/model/small_models.h"
#include "tests/text/test_files.h"

namespace attnres::testing::update_factors_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const Json kDependent = {{"type", "attn_res"}, {"query", "input_dependent"}};

std::vector<UpdateFactors> factors_of(const Transformer& model, const TrainConfig& train) {
  return update_factors(model.parameters(), model.config().sublayers(), train);
}

std::vector<double> rates_of(const Transformer& model, const NamedNumbers& rates) {
  std::vector<double> numbers;
  for (const UpdateFactors& of : factors_of(model, {.rates = rates})) numbers.push_back(of.rate);
  return numbers;
}

std::vector<double> decays_of(const Transformer& model, const NamedNumbers& decays) {
  std::vector<double> numbers;
  for (const UpdateFactors& of : factors_of(model, {.decays = decays})) numbers.push_back(of.decay);
  return numbers;
}

std::string refusal(const Transformer& model, const NamedNumbers& rates) {
  return message_of<UsageError>([&] { rates_of(model, rates); });
}

TEST(LearningRates, AreOneWithoutAPattern) {
  const Transformer model = small_model(kDependent);
  EXPECT_EQ(rates_of(model, {}), std::vector<double>(model.parameters().all().size(), 1.0));
}

TEST(LearningRates, AreOfTheFirstPatternThatMatches) {
  const Transformer model = small_model(kDependent);
  const std::vector<double> factors = rates_of(
      model, {{"model.layers.1.*.query_proj", 3}, {"*.query_proj", 0.1}, {"lm_hea?.*", 0}});
  int queries = 0;
  for (size_t i = 0; i < factors.size(); ++i) {
    const Parameter& p = model.parameters().all()[i];
    double expected = 1;
    if (p.role == "query_proj") expected = p.site == 2 || p.site == 3 ? 3 : 0.1;
    if (p.role == "head") expected = 0;
    EXPECT_EQ(factors[i], expected) << p.site << " " << p.role;
    queries += p.role == "query_proj";
  }
  EXPECT_EQ(queries, 6);
}

TEST(LearningRates, RefusePatternsOfNoParameterAndNameTheNearest) {
  const Transformer model = small_model(kDependent);
  EXPECT_THAT(refusal(model, {{"*.query_prj", 0.1}}),
              AllOf(HasSubstr("train.rates: *.query_prj matches no parameter"),
                    HasSubstr("query_proj"), Not(HasSubstr("q_proj.weight"))));
  EXPECT_THAT(refusal(model, {{"model.layer.2.self_attn.q_proj.weight", 0.1}}),
              HasSubstr("the nearest is model.layers.2.self_attn.q_proj.weight"));
  EXPECT_THAT(refusal(model, {{"*.query_proj", 0.1}, {"", 1}}), HasSubstr("matches no parameter"));
  EXPECT_NO_THROW(rates_of(model, {{"*", 0.5}, {"*.query_proj", 0.1}}));
}

TEST(LearningRates, TakeTheExpertsOfAStackTogether) {
  const Transformer model = kimi_model(/*k3=*/false, residual());
  const std::vector<double> factors = rates_of(model, {{"*.experts.*", 0.1}});
  int stacks = 0;
  for (size_t i = 0; i < factors.size(); ++i) {
    const bool is_stack = model.parameters().all()[i].tensor.dim() == 3 &&
                          model.parameters().all()[i].kind == ParameterKind::matrix;
    EXPECT_EQ(factors[i] == 0.1, is_stack) << model.parameters().all()[i].role;
    stacks += is_stack;
  }
  EXPECT_GT(stacks, 0);
  EXPECT_THAT(refusal(model, {{"*.experts.3.*", 0.1}}),
              HasSubstr("matches 1 expert of 5, but experts share one factor"));
  // Moved by the load, at a rate of its own.
  EXPECT_THAT(refusal(model, {{"*e_score_correction_bias", 0.1}}),
              HasSubstr("matches no parameter"));
}

TEST(WeightDecays, AreOfLinearMapsWhereNoPatternMatches) {
  const Transformer model = small_model(kDependent);
  const std::vector<double> without = decays_of(model, {}),
                            with =
                                decays_of(model, {{"*.query_proj", 0}, {"*layernorm.weight", 2}});
  for (size_t i = 0; i < without.size(); ++i) {
    const Parameter& p = model.parameters().all()[i];
    const bool is_map = p.kind == ParameterKind::matrix || p.kind == ParameterKind::head;
    EXPECT_EQ(without[i], is_map ? 1 : 0) << p.site << " " << p.role;
    const double expected = p.role == "query_proj"                 ? 0
                            : p.role == "input_norm" && p.site < 6 ? 2
                                                                   : without[i];
    EXPECT_EQ(with[i], expected) << p.site << " " << p.role;
  }
  EXPECT_THAT(message_of<UsageError>([&] {
                decays_of(model, {{"*.query_prj", 1}});
              }),
              HasSubstr("train.decays: *.query_prj matches no parameter"));
}

// What two steps leave of every parameter, with gradients that follow from site, role and step.
std::map<std::string, at::Tensor> after_steps(const std::string& optimizer, double rate,
                                              const NamedNumbers& rates,
                                              const NamedNumbers& decays = {}) {
  const Transformer model = small_model(kDependent, {.precision = at::kFloat});
  TrainConfig config;
  config.optimizer = optimizer;
  config.rates = rates;
  config.decays = decays;
  Optimizer made(model, config);
  for (int step = 0; step < 2; ++step) {
    for (const Parameter& p : model.parameters().all()) {
      const at::Tensor n = at::arange(p.tensor.numel(), at::kFloat).view(p.tensor.sizes());
      p.tensor.mutable_grad() = at::sin(n * n + step + p.site);
    }
    made.step(rate, /*divisor=*/1);
  }
  std::map<std::string, at::Tensor> values;
  for (const Parameter& p : model.parameters().all()) {
    values[fmt::format("{}.{}", p.site, p.role)] = p.tensor.detach();
  }
  return values;
}

std::map<std::string, at::Tensor> at_start() {
  return after_steps("adamw", 0, {});
}

class RatesOf : public ::testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Optimizer, RatesOf, ::testing::Values("adamw", "muon"));

// It matches a matrix and a vector; Muon moves the one and AdamW the other.
const char* const kPattern = "model.layers.1.*proj*";
bool is_meant(const std::string& name) {
  return (name.starts_with("2.") || name.starts_with("3.")) &&
         name.find("proj") != std::string::npos;
}

TEST_P(RatesOf, ZeroLeavesAParameterAsItIs) {
  const auto start = at_start(), without = after_steps(GetParam(), 0.01, {}),
             frozen = after_steps(GetParam(), 0.01, {{kPattern, 0}, {"model.norm.weight", 0}});
  int kept = 0;
  for (const auto& [name, value] : start) {
    const bool is_frozen = is_meant(name) || name == "6.input_norm";
    EXPECT_EQ(at::equal(frozen.at(name), value), is_frozen) << name;
    EXPECT_EQ(at::equal(frozen.at(name), without.at(name)), !is_frozen) << name;
    kept += is_frozen;
  }
  EXPECT_GE(kept, 8);
}

TEST_P(RatesOf, HalfIsARunOfHalfTheRate) {
  const auto whole = after_steps(GetParam(), 0.02, {}), half = after_steps(GetParam(), 0.01, {}),
             mixed = after_steps(GetParam(), 0.02, {{kPattern, 0.5}, {"model.norm.weight", 0.5}});
  for (const auto& [name, value] : mixed) {
    const bool is_half = is_meant(name) || name == "6.input_norm";
    EXPECT_EQ(at::equal(value, half.at(name)), is_half) << name;
    EXPECT_EQ(at::equal(value, whole.at(name)), !is_half) << name;
  }
}

// Two updates u, which gradients alone decide, give p (1 - a)^2 - u (1 - a) - u, a = lr decay.
TEST_P(RatesOf, DecaysMoveAParameterTowardsZeroByTheirFactor) {
  constexpr double kRate = 0.01, kFactor = 20;
  const double a = kRate * kFactor * TrainConfig().weight_decay;
  const auto start = at_start(), without = after_steps(GetParam(), kRate, {}, {{"*", 0}}),
             with = after_steps(GetParam(), kRate, {}, {{kPattern, kFactor}, {"*", 0}});
  for (const auto& [name, value] : with) {
    const at::Tensor difference = value - without.at(name);
    const at::Tensor expected =
        is_meant(name) ? (a * a - 2 * a) * start.at(name) : at::zeros_like(difference);
    const double largest = expected.abs().max().item<double>();
    EXPECT_EQ(largest > 3 * a * kRate, is_meant(name)) << name;
    // AdamW's u is the rate at most, and Muon's less than half of it.
    EXPECT_LE((difference - expected).abs().max().item<double>(), largest > 0 ? 1.1 * a * kRate : 0)
        << name;
  }
}

TEST(LearningRates, LeaveWhatIsFrozenOutOfNormAndMoments) {
  const Transformer model = small_model(kDependent, {.precision = at::kFloat});
  TrainConfig config;
  config.rates = {{"*.query_proj", 0}, {"*.q_proj.weight", 0.5}};
  const Optimizer optimizer(model, config);
  double squares = 0;
  std::set<std::string> expected, moments;
  for (const Parameter& p : model.parameters().all()) {
    p.tensor.mutable_grad() = at::full_like(p.tensor, 2).detach();
    if (p.role == "query_proj") continue;
    squares += 4.0 * static_cast<double>(p.tensor.numel());
    expected.insert(fmt::format("{}.{}.first_moment", p.site, p.role));
    expected.insert(fmt::format("{}.{}.second_moment", p.site, p.role));
  }
  for (const auto& [name, moment] : optimizer.state()) moments.insert(name);
  EXPECT_EQ(moments, expected);
  EXPECT_NEAR(optimizer.gradient_norm(), std::sqrt(squares), 1e-5 * std::sqrt(squares));
}

}  // namespace
}  // namespace attnres::testing::update_factors_test
