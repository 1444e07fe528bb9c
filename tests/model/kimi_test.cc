// Models of Kimi Linear's and Kimi K3's layers, under every kind of depth mixing that they meet.

#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>

#include "attnres/layers/attention.h"
#include "attnres/support/config.h"
#include "tests/model/small_models.h"
#include "tests/text/test_files.h"
#include "tests/tolerances.h"

namespace attnres::testing::kimi_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Kimi {
  std::string name;
  bool k3;
  Json depth_mixing;
};
std::ostream& operator<<(std::ostream& out, const Kimi& kimi) {
  return out << kimi.name;
}

class KimiModel : public ::testing::TestWithParam<Kimi> {
 protected:
  // Longer than a chunk of delta attention.
  const at::Tensor ids_ = random_ids(2, 70);
  const Transformer model_ = kimi_model(GetParam().k3, GetParam().depth_mixing);

  std::vector<at::Tensor> gradients(const RunContext& context) const {
    model_.loss(ids_, ids_.roll(-1, 1), context).backward();
    std::vector<at::Tensor> result;
    for (const Parameter& p : model_.parameters().all()) {
      result.push_back(p.tensor.grad());
      p.tensor.mutable_grad().reset();
    }
    return result;
  }
};

TEST_P(KimiModel, LogitsAreFarFromUniform) {
  const at::NoGradGuard no_grad;
  EXPECT_GT(model_.logits(model_.hidden(ids_)).std().item<double>(), 1.5);
}

TEST_P(KimiModel, EveryParameterThatGradientsMoveHasOne) {
  const auto all = gradients({});
  for (size_t i = 0; i < all.size(); ++i) {
    const Parameter& p = model_.parameters().all()[i];
    const bool has_gradient = all[i].defined() && all[i].abs().max().item<double>() > 1e-9;
    EXPECT_EQ(has_gradient, p.kind != ParameterKind::router_bias) << p.site << " " << p.role;
  }
}

TEST_P(KimiModel, RecomputationGivesTheSameGradientsAndCountsLoadsOnce) {
  ExpertLoads plain_loads, recomputed_loads;
  const auto plain = gradients({.expert_loads = &plain_loads});
  const auto recomputed = gradients({.recompute = true, .expert_loads = &recomputed_loads});
  for (size_t i = 0; i < plain.size(); ++i) {
    if (!plain[i].defined()) continue;
    EXPECT_TRUE(close(recomputed[i], plain[i], 1e-11)) << i;
  }
  ASSERT_EQ(plain_loads.size(), 3u);  // the first of four feed-forwards is dense
  for (const auto& [site, load] : plain_loads) {
    EXPECT_EQ(site % 2, 1);
    EXPECT_EQ(load.sum().item<int64_t>(), 2 * 70 * 2);
    EXPECT_TRUE(load.equal(recomputed_loads.at(site)));
  }
}

TEST_P(KimiModel, DecodesInPiecesAsInOne) {
  const at::NoGradGuard no_grad;
  const at::Tensor expected = model_.hidden(ids_);
  SideBySide decoded = side_by_side(model_, 2, 70);
  int64_t start = 0;
  for (const int64_t piece : {1, 1, 2, 63, 1, 2}) {
    EXPECT_TRUE(close(hidden_of(model_, ids_.narrow(1, start, piece), decoded),
                      expected.narrow(1, start, piece), 1e-10))
        << start;
    start += piece;
  }
  // Control: a state that was not carried over.
  SideBySide empty = side_by_side(model_, 2, 70);
  EXPECT_FALSE(
      close(hidden_of(model_, ids_.narrow(1, 69, 1), empty), expected.narrow(1, 69, 1), 1e-3));
}

TEST_P(KimiModel, ATokenSeesNoLaterToken) {
  const at::NoGradGuard no_grad;
  at::Tensor after = ids_.clone();
  after.select(1, 66).fill_((ids_.select(1, 66).max().item<int64_t>() + 1) % kSmallVocabulary);
  const at::Tensor a = model_.hidden(ids_), b = model_.hidden(after);
  EXPECT_TRUE(close(a.narrow(1, 0, 66), b.narrow(1, 0, 66)));
  EXPECT_FALSE(close(a.select(1, 66), b.select(1, 66), 1e-3));
  EXPECT_FALSE(close(a.select(1, 69), b.select(1, 69), 1e-6));
}

INSTANTIATE_TEST_SUITE_P(Models, KimiModel,
                         ::testing::Values(Kimi{"linear_residual", false, residual()},
                                           Kimi{"linear_block", false, block_attn_res(4)},
                                           Kimi{"k3_block", true, block_attn_res(4)},
                                           Kimi{"k3_full", true, attn_res()},
                                           Kimi{"k3_mhc_lite", true, {{"type", "mhc_lite"}}}),
                         [](const auto& info) { return info.param.name; });

TEST(KimiNeeds, WhatLayersCannotServeIsRefused) {
  for (const char* type : {"value_residual", "lime", "hybrid_norm"}) {
    EXPECT_THAT(message_of<UsageError>([&] {
                  kimi_model(false, {{"type", type}});
                }),
                HasSubstr("delta attention"))
        << type;
  }
}

TEST(KimiConfig, ShortensTheListOfKindsAndRefusesWhatHasNoEffect) {
  Json json = write_config(kimi_config(false, residual()));
  json["layers"] = 8;
  const std::vector<std::string> kinds = json["attention"];
  std::vector<std::string> twice = kinds;
  twice.insert(twice.end(), kinds.begin(), kinds.end());
  json["attention"] = twice;
  EXPECT_EQ(read_model_config(json).attention, kinds);
  json["attention"] = {kGroupedQuery};
  EXPECT_THAT(message_of<UsageError>([&] { read_model_config(json); }),
              AllOf(HasSubstr("model.delta_attention"), HasSubstr("no delta attention")));
  json["attention"] = {"linear"};
  EXPECT_THAT(message_of<UsageError>([&] { read_model_config(json); }),
              AllOf(HasSubstr("model.attention"), HasSubstr("got linear")));
}

}  // namespace
}  // namespace attnres::testing::kimi_test
