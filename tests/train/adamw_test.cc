#include "attnres/train/optimizers/adamw.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "attnres/train/optimizers/optimizer.h"
#include "tests/larger.h"

namespace attnres::adamw_test {
namespace {

constexpr double kRate = 0.01;
constexpr int kSteps = 20;
constexpr double kDivisor = 3;  // by which the gradients given are too large

TrainConfig config() {
  TrainConfig train;
  train.weight_decay = 0.3;
  train.beta1 = 0.8;
  train.beta2 = 0.9;
  train.epsilon = 1e-6;
  return train;
}

// One parameter of each kind, started at random.
ParameterRegistry one_of_each(at::ScalarType dtype = at::kFloat) {
  ParameterRegistry registry(dtype, 1);
  int site = 0;
  for (const ParameterKind kind :
       {ParameterKind::matrix, ParameterKind::embedding, ParameterKind::head,
        ParameterKind::norm_gain, ParameterKind::pseudo_query}) {
    registry.add(site++, "p", kind, {5, 7}, Init::normal(1));
  }
  return registry;
}

at::Tensor gradient(int step, int parameter) {
  const at::Tensor n = at::arange(35, at::kDouble).view({5, 7});
  return at::sin(n * (1 + parameter) + step) * (1 + step % 3);
}

// The update as the formula has it, in float64, one number at a time.
struct Reference {
  std::vector<double> p, m = std::vector<double>(35), v = std::vector<double>(35);

  void step(const at::Tensor& g, int t, double decay, const TrainConfig& c) {
    for (int i = 0; i < 35; ++i) {
      const double gi = g.flatten()[i].item<double>();
      m[i] = c.beta1 * m[i] + (1 - c.beta1) * gi;
      v[i] = c.beta2 * v[i] + (1 - c.beta2) * gi * gi;
      const double mean = m[i] / (1 - std::pow(c.beta1, t));
      const double square = v[i] / (1 - std::pow(c.beta2, t));
      p[i] -= kRate * decay * p[i] + kRate * mean / (std::sqrt(square) + c.epsilon);
    }
  }
};

// The largest difference from the reference after kSteps; the reference decays a parameter by
// `decay_of` its kind.
template <class F>
double largest_difference(at::ScalarType dtype, F decay_of) {
  const TrainConfig train = config();
  const ParameterRegistry registry = one_of_each(dtype);
  Optimizer optimizer(registry, train, update_factors(registry, /*sublayers=*/4, train));
  std::vector<Reference> references;
  for (const Parameter& p : registry.all()) {
    const at::Tensor start = p.tensor.detach().to(at::kDouble).flatten();
    references.push_back({std::vector<double>(start.const_data_ptr<double>(),
                                              start.const_data_ptr<double>() + start.numel())});
  }
  for (int t = 1; t <= kSteps; ++t) {
    for (size_t k = 0; k < references.size(); ++k) {
      const Parameter& p = registry.all()[k];
      const at::Tensor g = gradient(t, static_cast<int>(k));
      p.tensor.mutable_grad() = (kDivisor * g).to(dtype);
      references[k].step(g, t, decay_of(p.kind), train);
    }
    optimizer.step(kRate, kDivisor);
  }
  double largest = 0;
  for (size_t k = 0; k < references.size(); ++k) {
    const at::Tensor expected = at::tensor(references[k].p, at::kDouble).view({5, 7});
    largest = testing::larger(
        largest, (registry.all()[k].tensor.detach() - expected).abs().max().item<double>());
  }
  return largest;
}

double decay_of(ParameterKind kind) {
  const bool decays = kind == ParameterKind::matrix || kind == ParameterKind::head;
  return decays ? config().weight_decay : 0;
}

TEST(AdamW, FollowsTheFormulaAndDecaysLinearMapsOnly) {
  EXPECT_LT(largest_difference(at::kFloat, decay_of), 3e-6);
  EXPECT_LT(largest_difference(at::kDouble, decay_of), 1e-12);
}

TEST(AdamW, TheReferenceSeesAWrongDecay) {
  EXPECT_GT(largest_difference(at::kFloat, [](ParameterKind) { return config().weight_decay; }),
            1e-3);
  EXPECT_GT(largest_difference(at::kFloat, [](ParameterKind) { return 0.0; }), 1e-3);
}

}  // namespace
}  // namespace attnres::adamw_test
