#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "attnres/model/transformer.h"
#include "attnres/support/error.h"
#include "tests/model/stages.h"

namespace attnres::testing::stage_test {
namespace {

class EveryMechanismInStages : public ::testing::TestWithParam<Mixing> {};

INSTANTIATE_TEST_SUITE_P(Mechanisms, EveryMechanismInStages, ::testing::ValuesIn(every_variant()),
                         [](const auto& info) { return info.param.name; });

TEST_P(EveryMechanismInStages, HoldsEachParameterWhereItIsUsed) {
  for (const bool tied : {false, true}) {
    const Transformer whole = small_model(GetParam().json, {.tied = tied});
    for (const auto& ranges : ways_to_cut_three_layers()) {
      const auto stages = small_stages(GetParam().json, ranges, {.tied = tied});
      int64_t counted = 0;
      for (const Parameter& p : whole.parameters().all()) {
        const std::vector<size_t> with = stages_with(p, {ranges.begin(), ranges.end()});
        ASSERT_FALSE(with.empty()) << p.role << " of site " << p.site;
        counted += p.tensor.numel();
        for (size_t i = 0; i < stages.size(); ++i) {
          const Parameter* own = stages[i].parameters().find(p.site, p.role);
          const bool held = std::find(with.begin(), with.end(), i) != with.end();
          ASSERT_EQ(own != nullptr, held) << p.role << " of site " << p.site << ", stage " << i;
          EXPECT_TRUE(!held || own->tensor.equal(p.tensor)) << p.role << " of site " << p.site;
        }
      }
      EXPECT_EQ(counted, whole.parameters().count());
    }
  }
}

// What passes from stage to stage is a copy of the tensors that a settled state has.
at::Tensor hidden_through(const std::vector<Transformer>& stages, const at::Tensor& ids) {
  const at::NoGradGuard not_recording;
  DepthState state = stages[0].embed(ids);
  for (const Transformer& stage : stages) {
    const SiteRange sites = only_range(stage);
    DepthState received;
    for (const at::Tensor& tensor : state.sealed) received.sealed.push_back(tensor.clone());
    for (const at::Tensor& tensor : state.open) received.open.push_back(tensor.clone());
    received.site = sites.first;
    received.sequence = state.sequence;
    stage.run(received, std::min(sites.last, stage.sublayers()));
    if (sites.has(stage.sublayers())) return stage.output(received);
    stage.mixer().settle(received);
    state = std::move(received);
  }
  return {};
}

TEST_P(EveryMechanismInStages, ComputesWhatTheWholeDoes) {
  const at::Tensor ids = random_ids(2, 7);
  const Transformer whole = small_model(GetParam().json, {.precision = at::kFloat});
  const at::NoGradGuard not_recording;
  const at::Tensor expected = whole.hidden(ids);
  for (const auto& ranges : ways_to_cut_three_layers()) {
    const auto stages = small_stages(GetParam().json, ranges, {.precision = at::kFloat});
    EXPECT_TRUE(hidden_through(stages, ids).equal(expected.flatten(0, 1)))
        << ranges.size() << " stages";
  }
}

TEST(Stage, HasNoMemoryForOtherSites) {
  ModelConfig config = small_config(residual(), 64);
  const Transformer whole(config, kSmallVocabulary, /*seed=*/{}, at::kFloat, at::kMeta);
  const Transformer stage(config, kSmallVocabulary, /*seed=*/{}, at::kFloat, at::kMeta,
                          SiteRange{2, 4});
  const int64_t layers =
      whole.parameters().count() - (2 * kSmallVocabulary + 1) * config.width;  // and the last norm
  EXPECT_EQ(stage.parameters().count() * 64, layers);
  EXPECT_EQ(stage.sublayers(), 128);
  const auto pool_of = [&](SiteRange sites) {
    return Transformer(config, kSmallVocabulary, 1, at::kFloat, at::kCPU, sites)
        .make_pool({.tokens = 4})
        ->bytes();
  };
  EXPECT_EQ(pool_of({}), 64 * pool_of({2, 4}));
}

TEST(Stage, RefusesWhatOtherStagesDo) {
  const ModelConfig config = small_config(residual());
  const auto stage_of = [&](SiteRange sites) {
    return Transformer(config, kSmallVocabulary, 1, at::kFloat, at::kCPU, sites);
  };
  const at::Tensor ids = random_ids(1, 3);
  EXPECT_THROW(stage_of({1, 3}).embed(ids), Error);
  const Transformer first = stage_of({0, 3});
  DepthState state = first.embed(ids);
  EXPECT_THROW(first.run(state, 4), Error);
  EXPECT_EQ(state.site, 0);
  first.run(state, 3);
  EXPECT_THROW(first.output(state), Error);
  EXPECT_THROW(first.logits(state.open[0]), Error);
  EXPECT_THROW(stage_of({3, 3}), Error);
  EXPECT_THROW(stage_of({7, 9}), Error);
  EXPECT_THROW(stage_of({-1, 3}), Error);
}

// Tokens one at a time, every stage with a pool of its own.
TEST(Stage, DecodesWithAPoolOfItsOwn) {
  const at::NoGradGuard not_recording;
  const at::Tensor ids = random_ids(2, 5);
  for (const char* type : {"mrla", "lime", "block_attn_res"}) {
    const Json mixing = {{"type", type}};
    const at::Tensor expected = small_model(mixing).hidden(ids);
    const auto stages = small_stages(mixing, ranges_between({0, 3, 6, 7}));
    std::vector<SideBySide> decoded;
    for (const Transformer& stage : stages) decoded.push_back(side_by_side(stage, 2, 5));
    for (int64_t t = 0; t < ids.size(1); ++t) {
      DepthState state = stages[0].embed(ids.select(1, t), decoded[0].next(1));
      for (size_t i = 0; i < stages.size(); ++i) {
        if (i > 0) state.sequence.spans = std::make_shared<Spans>(decoded[i].next(1));
        stages[i].run(state, std::min(only_range(stages[i]).last, 6));
        if (i + 1 < stages.size()) stages[i].mixer().settle(state);
      }
      const at::Tensor hidden = stages.back().output(state);
      EXPECT_LT((hidden - expected.select(1, t)).abs().max().item<double>(), 1e-12)
          << type << ", token " << t;
    }
  }
}

}  // namespace
}  // namespace attnres::testing::stage_test
