#include "attnres/train/optimizers/optimizer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>

#include <cmath>
#include <set>

#include "tests/tolerances.h"

namespace attnres::optimizer_test {
namespace {

using testing::close;
using ::testing::UnorderedElementsAreArray;

Optimizer make(const ParameterRegistry& registry, const std::string& optimizer) {
  TrainConfig train;
  train.optimizer = optimizer;
  return {registry, train, update_factors(registry, /*sublayers=*/0, train)};
}

const std::vector<std::pair<std::string, ParameterKind>> kKinds = {
    {"matrix", ParameterKind::matrix},
    {"embedding", ParameterKind::embedding},
    {"head", ParameterKind::head},
    {"norm_gain", ParameterKind::norm_gain},
    {"pseudo_query", ParameterKind::pseudo_query},
    {"mixing", ParameterKind::mixing},
    {"convolution", ParameterKind::convolution},
    {"decay", ParameterKind::decay},
    {"router_bias", ParameterKind::router_bias}};

// A parameter of each kind, named by it, and a stack of experts.
ParameterRegistry one_of_each() {
  ParameterRegistry registry(at::kFloat, 1);
  for (const auto& [name, kind] : kKinds) registry.add(0, name, kind, {5, 7}, Init::normal(1));
  registry.add(0, "experts", ParameterKind::matrix, {2, 5, 7}, Init::normal(1));
  return registry;
}

void set_gradients(const ParameterRegistry& registry, double scale = 1) {
  for (const Parameter& p : registry.all()) {
    if (!p.tensor.requires_grad()) continue;
    const at::Tensor n = at::arange(p.tensor.numel(), at::kFloat).view(p.tensor.sizes());
    p.tensor.mutable_grad() = at::sin(n * n) * scale;
  }
}

std::vector<at::Tensor> values(const ParameterRegistry& registry) {
  std::vector<at::Tensor> all;
  for (const Parameter& p : registry.all()) all.push_back(p.tensor.detach().clone());
  return all;
}

std::vector<at::Tensor> after_a_step(const std::string& optimizer, double scale, double divisor) {
  const ParameterRegistry registry = one_of_each();
  Optimizer made = make(registry, optimizer);
  set_gradients(registry, scale);
  made.step(0.01, divisor);
  return values(registry);
}

std::vector<std::string> moments(const std::string& optimizer) {
  const ParameterRegistry registry = one_of_each();
  std::vector<std::string> names;
  for (const auto& [name, moment] : make(registry, optimizer).state()) {
    names.push_back(name);
  }
  return names;
}

TEST(Optimizer, KeepsMomentsByKind) {
  std::vector<std::string> adamw, muon;
  for (const char* moment : {".first_moment", ".second_moment"}) {
    for (const char* kind :
         {"embedding", "head", "norm_gain", "pseudo_query", "mixing", "convolution", "decay"}) {
      muon.push_back("0." + std::string(kind) + moment);
    }
  }
  adamw = muon;
  for (const char* matrix : {"matrix", "experts"}) {
    muon.push_back("0." + std::string(matrix) + ".momentum");
    for (const char* moment : {".first_moment", ".second_moment"}) {
      adamw.push_back("0." + std::string(matrix) + moment);
    }
  }
  EXPECT_THAT(moments("adamw"), UnorderedElementsAreArray(adamw));
  EXPECT_THAT(moments("muon"), UnorderedElementsAreArray(muon));
}

TEST(Optimizer, MuonMovesMatricesOtherwiseAndAllElseTheSame) {
  const ParameterRegistry registry = one_of_each();
  const std::vector<at::Tensor> before = values(registry), adamw = after_a_step("adamw", 1, 1),
                                muon = after_a_step("muon", 1, 1);
  for (size_t i = 0; i < before.size(); ++i) {
    const Parameter& p = registry.all()[i];
    EXPECT_EQ(at::equal(muon[i], adamw[i]), p.kind != ParameterKind::matrix) << p.role;
    EXPECT_EQ(at::equal(muon[i], before[i]), p.kind == ParameterKind::router_bias) << p.role;
  }
}

// So that one learning rate serves both.
TEST(Optimizer, MuonsUpdatesAreAsLargeAsAdamWs) {
  ParameterRegistry registry(at::kFloat, 1);
  for (const auto& shape : {std::vector<int64_t>{64, 64}, {32, 128}, {128, 32}}) {
    registry.add(0, std::to_string(shape[0]), ParameterKind::matrix, shape, Init::zeros());
  }
  Optimizer optimizer = make(registry, "muon");
  for (const Parameter& p : registry.all()) {
    p.tensor.mutable_grad() =
        at::sin(at::arange(p.tensor.numel(), at::kFloat).square()).view(p.tensor.sizes());
  }
  optimizer.step(1, 1);
  for (const Parameter& p : registry.all()) {
    const double rms = std::sqrt(p.tensor.detach().square().mean().item<double>());
    EXPECT_NEAR(rms, 0.2, 0.05) << p.tensor.sizes();
  }
}

// Copies of weights in another dtype go by their versions.
TEST(Optimizer, ChangesTheVersionOfWhatItMoves) {
  for (const char* optimizer : {"adamw", "muon"}) {
    const ParameterRegistry registry = one_of_each();
    Optimizer made = make(registry, optimizer);
    set_gradients(registry);
    const auto versions = [&] {
      std::vector<int64_t> all;
      for (const Parameter& p : registry.all()) all.push_back(p.tensor._version());
      return all;
    };
    const std::vector<int64_t> before = versions();
    made.step(0.01, 1);
    const std::vector<int64_t> after = versions();
    for (size_t i = 0; i < before.size(); ++i) {
      EXPECT_EQ(after[i] > before[i], registry.all()[i].tensor.requires_grad()) << i;
    }
  }
}

TEST(Optimizer, DividesGradients) {
  for (const char* name : {"adamw", "muon"}) {
    const auto halved = after_a_step(name, 2e-8, 2), whole = after_a_step(name, 1e-8, 1),
               other = after_a_step(name, 2e-8, 1), thirds = after_a_step(name, 3e-8, 3);
    for (size_t i = 0; i < halved.size(); ++i) {
      EXPECT_TRUE(at::equal(halved[i], whole[i])) << name;
      EXPECT_TRUE(close(thirds[i], whole[i])) << name;
    }
    EXPECT_FALSE(at::equal(halved[0], other[0])) << name;
  }
}

TEST(Optimizer, GradientNormIsOfAllTogether) {
  const ParameterRegistry registry = one_of_each();
  const Optimizer optimizer = make(registry, "muon");
  EXPECT_EQ(optimizer.gradient_norm(), 0);
  double squares = 0;
  for (int k = 0; k < 3; ++k) {  // the others have none
    const at::Tensor g = at::sin(at::arange(35, at::kDouble) * (1 + k)).view({5, 7});
    registry.all()[k].tensor.mutable_grad() = g.to(at::kFloat);
    squares += g.square().sum().item<double>();
  }
  EXPECT_NEAR(optimizer.gradient_norm(), std::sqrt(squares), 1e-5 * std::sqrt(squares));
}

TEST(Optimizer, ClearsGradientsAndSkipsWhatHasNone) {
  for (const char* name : {"adamw", "muon"}) {
    const ParameterRegistry registry = one_of_each();
    Optimizer optimizer = make(registry, name);
    const std::vector<at::Tensor> before = values(registry);
    registry.all()[1].tensor.mutable_grad() = at::ones({5, 7});
    optimizer.step(0.01, 1);
    EXPECT_EQ(optimizer.updates, 1);
    const std::vector<at::Tensor> after = values(registry);
    for (size_t i = 0; i < after.size(); ++i) EXPECT_EQ(at::equal(after[i], before[i]), i != 1);
    for (const Parameter& p : registry.all()) EXPECT_FALSE(p.tensor.grad().defined());
  }
}

}  // namespace
}  // namespace attnres::optimizer_test
