#include "attnres/model/magnitudes.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/model/kinds_of_models.h"

namespace attnres::testing::magnitudes_test {
namespace {

double rms(const at::Tensor& x) {
  return x.detach().square().mean().sqrt().item<double>();
}

// Adds zeros to every output, which receive its gradient.
class AddedZeros : public RunObserver {
 public:
  void on_write(int, at::Tensor& y) override {
    zeros.push_back(at::zeros_like(y).requires_grad_());
    outputs.push_back(y.detach());
    y = y + zeros.back();
  }
  void on_output(int, const at::Tensor&, const at::Tensor& running_state) override {
    states.push_back(running_state.detach());
  }

  std::vector<at::Tensor> zeros, outputs, states;
};

class EveryMagnitude : public ::testing::TestWithParam<KindOfModel> {};
INSTANTIATE_TEST_SUITE_P(Kinds, EveryMagnitude, ::testing::ValuesIn(every_kind_of_model()),
                         [](const auto& info) { return info.param.name; });

TEST_P(EveryMagnitude, IsThatOfOutputsStatesAndGradients) {
  const Transformer model = GetParam().make();
  const at::Tensor ids = random_ids(2, 6), targets = random_ids(2, 6, 7);
  AddedZeros seen;
  model.loss(ids, targets, {.observer = &seen}).backward();
  clear_gradients(model);
  const Magnitudes magnitudes = measure_magnitudes(model, ids, targets);
  for (const Parameter& p : model.parameters().all()) EXPECT_FALSE(p.tensor.grad().defined());
  ASSERT_EQ(magnitudes.output.size(), static_cast<size_t>(model.sublayers()));
  for (int site = 0; site < model.sublayers(); ++site) {
    EXPECT_NEAR(magnitudes.output[site], rms(seen.outputs[site]), 1e-9);
    EXPECT_NEAR(magnitudes.state[site], rms(seen.states[site]), 1e-9);
    const double gradient = rms(seen.zeros[site].grad());
    EXPECT_NEAR(magnitudes.gradient[site], gradient, 1e-9 * gradient);
    EXPECT_GT(gradient, 0);
  }
}

}  // namespace
}  // namespace attnres::testing::magnitudes_test
