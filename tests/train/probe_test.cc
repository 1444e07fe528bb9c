#include "attnres/train/step/probe.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "tests/model/small_models.h"

namespace attnres::testing::probe_test {
namespace {

Batch batch() {
  return {random_ids(2, 8), random_ids(2, 8, 6)};
}

// name -> site -> value
std::map<std::string, std::map<int, Json>> values_of(const ProbeReading& reading) {
  std::map<std::string, std::map<int, Json>> values;
  for (const Json& line : reading.lines) {
    EXPECT_TRUE(values[line["name"]].emplace(line["site"], line["value"]).second) << line;
  }
  return values;
}

double rms(const at::Tensor& x) {
  return x.detach().square().mean().sqrt().item<double>();
}

// Residual connections: an output's gradient is that of the state after it, which is taken here
// by cutting the model in two.
TEST(Probe, MeasuresOutputsStatesAndGradients) {
  const Transformer model = small_model(residual());
  auto values = values_of(probe(model, batch()));
  EXPECT_EQ(values.size(), 3u);

  at::Tensor before;
  for (int site = 0; site < model.sublayers(); ++site) {
    DepthState state = model.embed(batch().inputs_BT);
    model.run(state, site);
    model.mixer().settle(state);
    before = state.open[0];
    model.run(state, site + 1);
    model.mixer().settle(state);
    const at::Tensor after = state.open[0].detach().requires_grad_();
    state.open[0] = after;
    model.run(state, model.sublayers());
    const at::Tensor logits = model.logits(model.output(state)).view({-1, kSmallVocabulary});
    at::cross_entropy_loss(logits, batch().targets_BT.view({-1})).backward();
    EXPECT_NEAR(values["gradient_rms"][site].get<double>(), rms(after.grad()), 1e-12);
    EXPECT_NEAR(values["state_rms"][site].get<double>(), rms(after), 1e-12);
    EXPECT_NEAR(values["output_rms"][site].get<double>(), rms(after - before), 1e-12);
  }
  EXPECT_EQ(values["gradient_rms"].size(), 6u);
}

TEST(Probe, SummarisesDepthWeights) {
  // Zero pseudo-queries weigh all sources alike: 1, 2, ... 7 of them.
  const Transformer model(small_config(attn_res()), kSmallVocabulary, 1, at::kDouble);
  const ProbeReading reading = probe(model, batch());
  auto values = values_of(reading);
  double share = 0;
  for (int site = 0; site <= 6; ++site) {
    const auto weights = values["depth_weights"][site].get<std::vector<double>>();
    ASSERT_EQ(weights.size(), site + 1u);
    for (const double weight : weights) EXPECT_NEAR(weight, 1.0 / (site + 1), 1e-6);
    EXPECT_NEAR(values["depth_entropy"][site].get<double>(), std::log(site + 1), 1e-6);
    if (site > 0) share += 1.0 / (site + 1) / 6;
  }
  ASSERT_TRUE(reading.depth_weights);
  EXPECT_NEAR(reading.depth_weights->relative_entropy, 1, 1e-6);
  EXPECT_NEAR(reading.depth_weights->embedding_share, share, 1e-6);
}

TEST(Probe, SeesWeightsThatAreNotUniform) {
  const Transformer model = small_model(block_attn_res(2));
  const ProbeReading reading = probe(model, batch());
  ASSERT_TRUE(reading.depth_weights);
  EXPECT_LT(reading.depth_weights->relative_entropy, 0.99);
  EXPECT_GT(reading.depth_weights->relative_entropy, 0);
  EXPECT_FALSE(probe(small_model(residual()), batch()).depth_weights);
}

// Models have every kind of layer; windows that count in part weigh as their tokens do.
TEST(Probe, OfRecomputedWindowsIsTheSame) {
  for (const Transformer& model : {small_model(block_attn_res(2)), small_model({{"type", "mhc"}}),
                                   kimi_model(/*k3=*/false, block_attn_res(4))}) {
    Batch windows = batch();
    windows.targets_BT[1].narrow(0, 0, 5).fill_(-100);
    auto plain = values_of(probe(model, windows)),
         recomputed = values_of(probe(model, windows, /*recompute=*/true));
    ASSERT_EQ(plain.size(), recomputed.size());
    for (const auto& [name, sites] : plain) {
      ASSERT_EQ(sites.size(), recomputed[name].size()) << name;
      for (const auto& [site, value] : sites) {
        const auto list = [](const Json& json) { return json.is_array() ? json : Json({json}); };
        const auto numbers = list(value).get<std::vector<double>>(),
                   again = list(recomputed[name][site]).get<std::vector<double>>();
        ASSERT_EQ(numbers.size(), again.size()) << name;
        for (size_t i = 0; i < numbers.size(); ++i) EXPECT_NEAR(numbers[i], again[i], 1e-12);
        if (name.ends_with("_rms")) {
          EXPECT_GT(numbers.at(0), 0) << name;
        }
      }
    }
    for (const Parameter& p : model.parameters().all()) EXPECT_FALSE(p.tensor.grad().defined());
  }
}

// The loss is the mean over the tokens of all windows that count.
TEST(Probe, OfWindowsIsThatOfAllAtOnce) {
  const Transformer model = small_model(attn_res());
  Batch windows = batch();
  windows.targets_BT[0].narrow(0, 2, 6).fill_(-100);
  auto values = values_of(probe(model, windows));
  const Magnitudes whole = measure_magnitudes(model, windows.inputs_BT, windows.targets_BT);
  for (int site = 0; site < model.sublayers(); ++site) {
    EXPECT_NEAR(values["gradient_rms"][site].get<double>(), whole.gradient[site], 1e-12);
    EXPECT_NEAR(values["state_rms"][site].get<double>(), whole.state[site], 1e-12);
    EXPECT_NEAR(values["output_rms"][site].get<double>(), whole.output[site], 1e-12);
  }
}

TEST(Probe, LeavesTheModelAsItWas) {
  const Transformer model = small_model(block_attn_res(2));
  std::vector<at::Tensor> before;
  for (const Parameter& p : model.parameters().all()) before.push_back(p.tensor.detach().clone());
  probe(model, batch());
  size_t i = 0;
  for (const Parameter& p : model.parameters().all()) {
    EXPECT_FALSE(p.tensor.grad().defined());
    EXPECT_TRUE(at::equal(p.tensor, before[i++]));
  }
}

}  // namespace
}  // namespace attnres::testing::probe_test
