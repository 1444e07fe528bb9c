#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/depth/mechanisms/cross_layer.h"

namespace attnres::delta_attn_res_test {
namespace {

using namespace testing;
using ::testing::HasSubstr;

constexpr int64_t d = 12;

Json delta(int64_t block_size, const Json& gate = "zero") {
  return {{"type", "delta_attn_res"}, {"block_size", block_size}, {"gate", gate}};
}

// What is wrong in a mixture, for negative controls.
enum class Mistake { none, no_open_block, stream_at_end, recursive, mixes_at_output };

// The sources of site l from the residual stream r_0 .. r_l before every site.
std::vector<Vector> sources_of(const std::vector<Vector>& r, int64_t S, Mistake mistake) {
  const auto l = static_cast<int64_t>(r.size()) - 1;
  std::vector<Vector> sources = {r[0]};
  for (int64_t begin = 0; begin < l; begin += S) {
    const int64_t end = std::min(begin + S, l);
    if (mistake == Mistake::no_open_block && end < begin + S) break;
    Vector before = r[begin];
    if (mistake == Mistake::recursive) before = sources.back();
    sources.push_back(mistake == Mistake::stream_at_end ? r[end] : plus(r[end], before, -1));
  }
  return sources;
}

Reads reference(const Bench& bench, const Vector& embedding, int L, int64_t S, bool is_gated,
                Mistake mistake = Mistake::none) {
  std::vector<Vector> r = {embedding};
  Reads reads;
  for (int l = 0; l <= L; ++l) {
    Vector h = r.back();
    if (l > 0 && (l < L || mistake == Mistake::mixes_at_output)) {
      const int site = std::min(l, L - 1);
      const Vector mixture =
          reference::attend(sources_of(r, S, mistake), bench.values(site, "pseudo_query"),
                            bench.values(site, "key_norm"), kEps);
      h = plus(h, mixture, is_gated ? bench.values(site, "mixture_gate")[0] : 1);
    }
    reads.mixed.push_back(h);
    reads.inputs.push_back(normed(h, bench.values(l, "input_norm")));
    if (l < L) r.push_back(plus(r.back(), sublayer(l, reads.inputs.back())));
  }
  return reads;
}

struct Case {
  int sublayers;
  int64_t block_size;
  Json gate = "zero";
};

class DeltaAttnRes : public ::testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(Shapes, DeltaAttnRes,
                         ::testing::Values(Case{2, 1}, Case{8, 1}, Case{14, 1}, Case{8, 1, "none"},
                                           Case{8, 1, 0.12}, Case{8, 2}, Case{8, 3}, Case{8, 5},
                                           Case{8, 8}, Case{18, 2, "none"}, Case{12, 4, 0.12}));

TEST_P(DeltaAttnRes, MixesAsTheReferenceDoes) {
  const auto& [L, S, gate] = GetParam();
  const bool is_gated = gate != "none";
  Bench bench(delta(S, gate), d, L);
  bench.perturb(0.7);
  const Vector embedding = random_vector("embedding", 0, d);
  const Reads actual = reads_by(bench, embedding, L);
  EXPECT_LT(largest_difference(actual, reference(bench, embedding, L, S, is_gated)), 1e-12);
  for (const Mistake mistake : {Mistake::no_open_block, Mistake::stream_at_end, Mistake::recursive,
                                Mistake::mixes_at_output}) {
    const bool shows = (mistake != Mistake::no_open_block || S > 1) &&
                       (mistake != Mistake::recursive || L > 2 * S);
    if (!shows) continue;
    EXPECT_GT(largest_difference(actual, reference(bench, embedding, L, S, is_gated, mistake)),
              1e-3)
        << static_cast<int>(mistake);
  }
}

TEST_P(DeltaAttnRes, IsLinearWithWeightsHeld) {
  const auto& [L, S, gate] = GetParam();
  Bench bench(delta(S, gate), d, L);
  bench.perturb(0.7);
  EXPECT_LT(linearity_defect(bench, d, L, true), 1e-11);
  if (L > 2) {
    EXPECT_GT(linearity_defect(bench, d, L, false), 1e-3);
  }
}

TEST(DeltaAttnRes, StartsAsResidualWhereItsGateIsZero) {
  constexpr int L = 8;
  Bench plain({{"type", "residual"}}, d, L);
  const Vector embedding = random_vector("embedding", 1, d);
  const Reads residual = reads_by(plain, embedding, L);
  for (const int64_t S : {1, 3}) {
    for (const Json& gate : {Json("zero"), Json(0)}) {
      Bench bench(delta(S, gate), d, L);
      EXPECT_EQ(largest_difference(reads_by(bench, embedding, L), residual), 0) << S;
    }
    for (const Json& gate : {Json("none"), Json(0.12)}) {
      Bench bench(delta(S, gate), d, L);
      EXPECT_GT(largest_difference(reads_by(bench, embedding, L), residual), 1e-3) << S << gate;
    }
  }
}

TEST(DeltaAttnRes, ItsGateStartsAtTheNumber) {
  EXPECT_EQ(Bench(delta(1, 0.12), d, 4).values(2, "mixture_gate"), Vector{0.12});
  EXPECT_EQ(Bench(delta(1), d, 4).values(2, "mixture_gate"), Vector{0});
  EXPECT_EQ(Bench(delta(1, "none"), d, 4).parameters.find(2, "mixture_gate"), nullptr);
}

// Neither the embedding's site nor the output has a choice.
TEST(DeltaAttnRes, OwnsNoParameterWithoutEffect) {
  const Bench bench(delta(2), d, 6);
  for (const char* role : {"pseudo_query", "key_norm", "mixture_gate"}) {
    for (int l = 0; l <= 6; ++l) {
      EXPECT_EQ(bench.parameters.find(l, role) != nullptr, l > 0 && l < 6) << role << l;
    }
  }
}

// The depth weights of a read, as those who look on see them, without a source.
std::pair<Vector, std::vector<std::string>> weights_at(const Bench& bench, int sublayers, int site,
                                                       const std::string& dropped = {}) {
  DepthState state = bench.mixer->start(vector_tensor(random_vector("v", 0, d)).view({1, d}));
  MixingAnalysis analysis = {.dropped_source = dropped};
  state.analysis = &analysis;
  for (int l = 0; l <= sublayers; ++l) {
    bench.mixer->read(state);
    if (l == site) break;
    bench.mixer->write(state, {vector_tensor(random_vector("y", l, d)).view({1, d})});
  }
  if (!analysis.read.weights.defined()) return {};
  return {as_vector(analysis.read.weights), analysis.read.sources};
}

TEST(DeltaAttnRes, ShowsItsDepthWeights) {
  Bench bench(delta(2), d, 6);
  bench.perturb(0.7);
  EXPECT_TRUE(weights_at(bench, 6, 0).second.empty());
  EXPECT_TRUE(weights_at(bench, 6, 6).second.empty());
  const auto [weights, sources] = weights_at(bench, 6, 3);
  EXPECT_EQ(sources, (std::vector<std::string>{"embedding", "block 1", "partial sum"}));
  EXPECT_NEAR(weights[0] + weights[1] + weights[2], 1, 1e-12);
  const Vector without = weights_at(bench, 6, 3, "block 1").first;
  EXPECT_EQ(without[1], 0);
  EXPECT_NEAR(without[0], weights[0] / (weights[0] + weights[2]), 1e-12);
  EXPECT_EQ(weights_at(bench, 6, 4).second,
            (std::vector<std::string>{"embedding", "block 1", "block 2"}));
  EXPECT_EQ(weights_at(Bench(delta(1), d, 6), 6, 2).second,
            (std::vector<std::string>{"embedding", "sublayer 1", "sublayer 2"}));
}

TEST(DeltaAttnRes, CutsWhereBlocksAndTransformerLayersEnd) {
  EXPECT_EQ(Bench(delta(1), d, 6).mixer->cuts(), (std::vector<int>{2, 4}));
  EXPECT_EQ(Bench(delta(4), d, 12).mixer->cuts(), (std::vector<int>{4, 8}));
}

TEST(DeltaAttnRes, SaysItsFormulaAsItsSettingsMakeIt) {
  const MixerShape shape = {.width = d, .sublayers = 8};
  const auto formula = [&](const Json& json) { return DepthMixing(json, shape).formula(shape); };
  EXPECT_THAT(formula(delta(1)), HasSubstr("h_l = r_l + a_l sum_i"));
  EXPECT_THAT(formula(delta(1)), HasSubstr("v_0 .. v_l"));
  EXPECT_THAT(formula(delta(4, "none")), HasSubstr("h_l = r_l + sum_i"));
  EXPECT_THAT(formula(delta(4, "none")), HasSubstr("block sums b_i"));
}

TEST(DeltaAttnRes, RefusesImpossibleSettings) {
  EXPECT_EQ(refusal_of(delta(8)), "accepted");
  EXPECT_THAT(refusal_of(delta(0)), HasSubstr("block_size: expected 1 or more, got 0"));
  EXPECT_THAT(refusal_of(delta(9)), HasSubstr("expected 1 to 8 (sublayers"));
  EXPECT_THAT(refusal_of(delta(1, "learned")), HasSubstr("gate: expected"));
  EXPECT_THAT(refusal_of(delta(1, 101)), HasSubstr("gate: expected"));
  EXPECT_THAT(refusal_of(delta(1, true)), HasSubstr("a number or a word"));
}

}  // namespace
}  // namespace attnres::delta_attn_res_test
