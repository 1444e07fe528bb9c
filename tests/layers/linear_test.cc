// Groups of maps, and what of each layer a process holds that computes a part of it.
#include "attnres/layers/linear.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <memory>

#include "attnres/layers/attention.h"
#include "attnres/layers/delta_attention.h"
#include "attnres/layers/experts.h"
#include "attnres/layers/feed_forward.h"
#include "attnres/layers/latent_attention.h"
#include "tests/noise.h"
#include "tests/tolerances.h"

namespace attnres::linear_test {
namespace {

using at::Tensor;
using testing::close;

struct Group {
  Group()
      : maps(parameters, 3, 6,
             {{"first", 4, Init::normal(1)},
              {"second", 1, Init::normal(1)},
              {"third", 5, Init::normal(1)}}) {}

  Tensor weight(const char* role) const { return parameters.find(3, role)->tensor; }
  void expect_products(const Tensor& x) const {
    const std::vector<Tensor> outputs = maps(x);
    ASSERT_EQ(outputs.size(), 3);
    EXPECT_TRUE(close(outputs[0], at::linear(x, weight("first"))));
    EXPECT_TRUE(close(outputs[1], at::linear(x, weight("second"))));
    EXPECT_TRUE(close(outputs[2], at::linear(x, weight("third"))));
  }

  ParameterRegistry parameters{at::kDouble, 1};
  LinearGroup maps;
};

TEST(LinearGroup, IsTheMapsOneByOneForAnyNumberOfTokens) {
  const Group group;
  for (const int64_t tokens : {1, 2, 17}) {
    const Tensor x = at::randn({1, tokens, 6}, at::kDouble);
    group.expect_products(x);
    const at::NoGradGuard not_recording;
    group.expect_products(x);
  }
}

TEST(LinearGroup, ReadsAWeightThatWasChangedInItsPlace) {
  const Group group;
  const at::NoGradGuard not_recording;
  const Tensor x = at::randn({1, 6}, at::kDouble);
  const Tensor before = group.maps(x)[1];
  group.weight("second").mul_(2);
  EXPECT_TRUE(close(group.maps(x)[1], 2 * before));
  EXPECT_FALSE(close(group.maps(x)[1], before));
  group.expect_products(x);
}

TEST(LinearGroup, StartsAsItsMapsWouldAlone) {
  const Group group;
  ParameterRegistry alone(at::kDouble, 1);
  const Linear third(alone, 3, 6, {"third", 5, Init::normal(1)});
  EXPECT_TRUE(at::equal(alone.find(3, "third")->tensor, group.weight("third")));
}

TEST(LinearGroup, GivesTheFirstRolesInputsOfTheirOwn) {
  const Group group;
  const Tensor x = at::randn({2, 6}, at::kDouble), own = at::randn({2, 6}, at::kDouble);
  const std::vector<Tensor> outputs = group.maps(x, {own, x});
  EXPECT_TRUE(close(outputs[0], at::linear(own, group.weight("first"))));
  EXPECT_FALSE(close(outputs[0], at::linear(x, group.weight("first"))));
  EXPECT_TRUE(close(outputs[1], at::linear(x, group.weight("second"))));
  EXPECT_TRUE(close(outputs[2], at::linear(x, group.weight("third"))));
}

constexpr int64_t kWidth = 12;
const LayerPlace kPlace = {.width = kWidth, .init_std = 0.3};

using MakeLayer = std::unique_ptr<Sublayer> (*)(int64_t parts, ParameterRegistry&);

struct ShardedLayer {
  const char* name;
  MakeLayer make;  // a layer with a part of its heads, or of its hidden width
};

const ShardedLayer kLayers[] = {
    {"attention",
     [](int64_t parts, ParameterRegistry& parameters) -> std::unique_ptr<Sublayer> {
       const AttentionShape shape = {.heads = 4 / parts, .kv_heads = 2 / parts, .head_width = 6};
       return std::make_unique<Attention>(shape, kPlace, parameters);
     }},
    {"attention with biases",
     [](int64_t parts, ParameterRegistry& parameters) -> std::unique_ptr<Sublayer> {
       const AttentionShape shape = {.heads = 4 / parts,
                                     .kv_heads = 2 / parts,
                                     .head_width = 6,
                                     .window = 2,
                                     .settings = {.qkv_bias = true, .qk_norm = true}};
       return std::make_unique<Attention>(shape, kPlace, parameters);
     }},
    {"latent",
     [](int64_t parts, ParameterRegistry& parameters) -> std::unique_ptr<Sublayer> {
       const LatentAttentionSettings settings = {.kv_rank = 5,
                                                 .q_rank = 7,
                                                 .key_width = 4,
                                                 .shared_key_width = 2,
                                                 .value_width = 3,
                                                 .output_gate = true};
       return std::make_unique<LatentAttention>(settings, 4 / parts, kPlace, parameters);
     }},
    {"delta",
     [](int64_t parts, ParameterRegistry& parameters) -> std::unique_ptr<Sublayer> {
       const DeltaAttentionSettings settings = {
           .heads = 4 / parts, .head_width = 5, .conv_width = 3};
       return std::make_unique<DeltaAttention>(settings, kPlace, parameters);
     }},
    {"delta with a gate of full rank",
     [](int64_t parts, ParameterRegistry& parameters) -> std::unique_ptr<Sublayer> {
       const DeltaAttentionSettings settings = {
           .heads = 4 / parts, .head_width = 5, .conv_width = 3, .output_gate = "full_rank"};
       return std::make_unique<DeltaAttention>(settings, kPlace, parameters);
     }},
    {"feed-forward",
     [](int64_t parts, ParameterRegistry& parameters) -> std::unique_ptr<Sublayer> {
       return std::make_unique<FeedForward>(16 / parts, Activation{}, kPlace, parameters);
     }},
    {"experts",
     [](int64_t parts, ParameterRegistry& parameters) -> std::unique_ptr<Sublayer> {
       const ExpertsSettings settings = {.count = 5, .chosen = 2, .width = 8 / parts, .shared = 1};
       return std::make_unique<Experts>(settings, Activation{}, kPlace, parameters);
     }},
};

// The dimension along which a parameter is cut; -1: it is not.
int64_t cut_along(const Parameter& p) {
  if (p.shard == Shard::none) return -1;
  // Experts are stacks of matrices.
  const int64_t rows = p.kind == ParameterKind::matrix ? p.tensor.dim() - 2 : 0;
  return p.shard == Shard::outputs ? rows : rows + 1;
}

// The sum of what `parts` processes give that each hold their part of every parameter.
Tensor sum_of_parts(const ShardedLayer& layer, const ParameterRegistry& whole, int64_t parts,
                    const Tensor& x, bool cut_inputs_wrongly = false) {
  Tensor sum = at::zeros_like(x);
  for (int64_t part = 0; part < parts; ++part) {
    ParameterRegistry parameters(at::kDouble, std::nullopt);
    const auto sublayer = layer.make(parts, parameters);
    for (const Parameter& p : parameters.all()) {
      const Parameter& of_whole = *whole.find(p.site, p.role);
      EXPECT_EQ(p.shard, of_whole.shard);
      Tensor values = of_whole.tensor.detach();
      if (const int64_t dimension = cut_along(p); dimension >= 0) {
        const int64_t size = p.tensor.size(dimension);
        const bool is_wrong = cut_inputs_wrongly && p.shard == Shard::inputs;
        values = values.narrow(dimension, size * (is_wrong ? parts - 1 - part : part), size);
      }
      p.tensor.detach().copy_(values);
    }
    sum += sublayer->forward({.x = x}, {}).y;
  }
  return sum;
}

TEST(Shards, OfEveryLayerAddUpToTheWhole) {
  const at::NoGradGuard not_recording;
  const Tensor x = at::randn({7, kWidth}, at::kDouble);
  for (const ShardedLayer& layer : kLayers) {
    ParameterRegistry whole(at::kDouble, 1);
    const auto sublayer = layer.make(1, whole);
    for (const Parameter& p : whole.all()) testing::add_noise(p, 0.3);
    const Tensor expected = sublayer->forward({.x = x}, {}).y;
    EXPECT_TRUE(close(sum_of_parts(layer, whole, 2, x), expected)) << layer.name;
    EXPECT_FALSE(close(sum_of_parts(layer, whole, 2, x, /*cut_inputs_wrongly=*/true), expected))
        << layer.name;
  }
}

}  // namespace
}  // namespace attnres::linear_test
