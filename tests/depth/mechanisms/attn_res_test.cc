#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "attnres/support/error.h"
#include "tests/depth/mechanisms/attn_res_reference.h"
#include "tests/depth/mixer_bench.h"

namespace attnres::attn_res_test {
namespace {

using namespace testing;
using ::testing::HasSubstr;

Json full() {
  return {{"type", "attn_res"}};
}
Json block(int64_t size) {
  return {{"type", "block_attn_res"}, {"block_size", size}};
}

// Sites whose depth weights are far from uniform.
std::vector<reference::Site> random_sites(int sublayers, size_t width) {
  std::vector<reference::Site> sites;
  for (int l = 0; l <= sublayers; ++l) {
    sites.push_back({random_vector("w", l, width, 1.0), random_vector("g", l, width, 0.3, 1),
                     random_vector("norm", l, width, 0.3, 1)});
  }
  return sites;
}

void load(Bench& bench, const std::vector<reference::Site>& sites) {
  for (int l = 0; l < static_cast<int>(sites.size()); ++l) {
    if (l > 0) {
      assign(bench.at(l, "pseudo_query"), vector_tensor(sites[l].w));
      assign(bench.at(l, "key_norm"), vector_tensor(sites[l].g));
    }
    assign(bench.at(l, "input_norm"), vector_tensor(sites[l].norm));
  }
}

struct Case {
  int sublayers;
  int64_t block_size;  // 0: attn_res
};

class AttnResAgainstEquations : public ::testing::TestWithParam<Case> {};

TEST_P(AttnResAgainstEquations, MixesAsTheReferenceDoes) {
  const auto [L, S] = GetParam();
  constexpr size_t d = 12;
  const auto sites = random_sites(L, d);
  const Vector embedding = random_vector("embedding", 0, d);
  Bench bench(S == 0 ? full() : block(S), d, L);
  load(bench, sites);
  const auto expected = reference::mixed_inputs(embedding, sites, S, kEps, sublayer);
  EXPECT_LT(largest_difference(mixed_by(bench, embedding, L), expected), 1e-12);

  // Negative control: another grouping of the sublayers gives other inputs.
  if (L > 2) {
    const size_t other = S == 2 ? 3 : 2;
    const auto different = reference::mixed_inputs(embedding, sites, other, kEps, sublayer);
    EXPECT_GT(largest_difference(different, expected), 1e-3);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, AttnResAgainstEquations,
                         ::testing::Values(Case{2, 0}, Case{8, 0}, Case{13, 0}, Case{8, 1},
                                           Case{8, 2}, Case{8, 3}, Case{8, 5}, Case{8, 8},
                                           Case{12, 4}, Case{7, 2}, Case{1, 1}, Case{2, 1}));

TEST(AttnRes, FullIsBlockOfOne) {
  constexpr int L = 6;
  constexpr size_t d = 8;
  const auto sites = random_sites(L, d);
  Bench a(full(), d, L), b(block(1), d, L), other(block(2), d, L);
  load(a, sites);
  load(b, sites);
  load(other, sites);
  const Vector embedding = random_vector("embedding", 1, d);
  const auto expected = mixed_by(a, embedding, L);
  EXPECT_EQ(largest_difference(mixed_by(b, embedding, L), expected), 0);
  EXPECT_GT(largest_difference(mixed_by(other, embedding, L), expected), 1e-3);
}

// The numbers of the design's table: eps 1e-6, g = 1, w = [2, 0, 0, 0] everywhere.
TEST(AttnRes, ReproducesTheWorkedExample) {
  constexpr int L = 4;
  Bench bench(block(2), 4, L);
  for (int l = 1; l <= L; ++l) {
    assign(bench.at(l, "pseudo_query"), at::tensor({2.0, 0.0, 0.0, 0.0}, at::kDouble));
  }
  const auto row = [](const Vector& v) { return vector_tensor(v).view({1, 4}); };
  DepthState state = bench.mixer->start(row({3, 0, 0, 0}));
  MixingAnalysis analysis;
  state.analysis = &analysis;
  const std::vector<at::Tensor> outputs = {row({0, 1, 0, 0}), row({0, 0, 1, 0}), row({0, 0, 0, 1}),
                                           row({0, 1, 1, 1})};
  const std::vector<at::Tensor> expected = {row({3, 0, 0, 0}), row({2.9460413, 0.0179862, 0, 0}),
                                            row({2.9460413, 0.0179862, 0.0179862, 0}),
                                            row({2.8939894, 0.0176684, 0.0176684, 0.0176684}),
                                            row({2.8939894, 0.0353369, 0.0353369, 0.0353369})};
  for (int l = 0; l <= L; ++l) {
    bench.mixer->read(state);
    const ReadTrace& trace = analysis.read;
    EXPECT_LT((trace.mixed - expected[l]).abs().max().item<double>(), 1e-6) << "site " << l;
    if (l < L) bench.mixer->write(state, {outputs[l]});
  }
}

// How many sources each site of an otherwise empty network has.
std::vector<int64_t> source_counts(const Json& depth_mixing, int sublayers) {
  Bench bench(depth_mixing, 2, sublayers);
  DepthState state = bench.mixer->start(at::ones({1, 2}, at::kDouble));
  MixingAnalysis analysis;
  state.analysis = &analysis;
  std::vector<int64_t> counts;
  for (int l = 0; l <= sublayers; ++l) {
    bench.mixer->read(state);
    const ReadTrace& trace = analysis.read;
    counts.push_back(trace.weights.size(0));
    EXPECT_EQ(trace.sources.size(), static_cast<size_t>(counts.back())) << l;
    if (l < sublayers) bench.mixer->write(state, {at::ones({1, 2}, at::kDouble)});
  }
  return counts;
}

TEST(AttnRes, CountsSourcesAsTheReportDoes) {
  // 48B: 54 sublayers in blocks of 6 make 9 blocks, 10 sources at the output.
  EXPECT_EQ(source_counts(block(6), 54).back(), 10);
  EXPECT_EQ(source_counts(full(), 6), (std::vector<int64_t>{1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(source_counts(block(2), 6), (std::vector<int64_t>{1, 2, 2, 3, 3, 4, 4}));
  // A short last block is a source of the output.
  EXPECT_EQ(source_counts(block(4), 6), (std::vector<int64_t>{1, 2, 2, 2, 2, 3, 3}));
  EXPECT_EQ(source_counts(block(6), 6), (std::vector<int64_t>{1, 2, 2, 2, 2, 2, 2}));
}

TEST(AttnRes, SealsBlocksWhereKimiK3Does) {
  constexpr int kLayers = 93, L = 2 * kLayers;
  Bench bench(block(24), 2, L);
  DepthState state = bench.mixer->start(at::ones({1, 2}, at::kDouble));
  std::vector<int> sealed_before = {0};  // the embedding
  for (int site = 0; site < L; ++site) {
    const size_t before = state.sealed.size();
    bench.mixer->read(state);
    if (state.sealed.size() > before) sealed_before.push_back(site / 2);
    bench.mixer->write(state, {at::ones({1, 2}, at::kDouble)});
  }
  EXPECT_EQ(sealed_before, (std::vector<int>{0, 12, 24, 36, 48, 60, 72, 84}));
}

TEST(AttnRes, CutsOnlyWhereBlocksAndTransformerLayersEnd) {
  EXPECT_EQ(Bench(block(4), 2, 12).mixer->cuts(), (std::vector<int>{4, 8}));
  EXPECT_EQ(Bench(block(3), 2, 12).mixer->cuts(), (std::vector<int>{6}));
  EXPECT_EQ(Bench(full(), 2, 6).mixer->cuts(), (std::vector<int>{2, 4}));
  EXPECT_EQ(Bench(block(12), 2, 12).mixer->cuts(), (std::vector<int>{}));
}

std::string refusal(const Json& depth_mixing, int sublayers = 8) {
  try {
    Bench(depth_mixing, 4, sublayers);
  } catch (const UsageError& e) {
    return e.what();
  }
  return "accepted";
}

TEST(AttnRes, MakesEightBlocksUnlessItIsTold) {
  EXPECT_EQ(source_counts({{"type", "block_attn_res"}}, 48), source_counts(block(6), 48));
  EXPECT_EQ(source_counts({{"type", "block_attn_res"}}, 4), source_counts(full(), 4));
}

TEST(AttnRes, TakesTheNumberOfBlocksInPlaceOfTheirSize) {
  const auto blocks = [](const Json& count) {
    return Json{{"type", "block_attn_res"}, {"num_blocks", count}};
  };
  const MixerShape shape = {.width = 4, .sublayers = 22, .norm_eps = 1e-6};
  // The last block is short.
  const auto read = [&](const Json& json) { return DepthMixing(json, shape).to_json(); };
  EXPECT_EQ(read(blocks(8)), read(block(3)));
  EXPECT_EQ(read(blocks(22)), read(block(1)));
  EXPECT_NE(read(blocks(1)), read(block(3)));
  EXPECT_EQ(refusal(blocks(4)), "accepted");
  EXPECT_THAT(refusal(blocks(5)), HasSubstr("8 sublayers make 4 blocks of 2 or 8 of 1, but not 5"));
  EXPECT_THAT(refusal(blocks(9)), HasSubstr("expected 1 to 8 (sublayers), got 9"));
  EXPECT_THAT(refusal(blocks(2.5)), HasSubstr("got 2.5"));
  Json both = block(2);
  both["num_blocks"] = 4;
  EXPECT_THAT(refusal(both), HasSubstr("leave one out"));
}

TEST(AttnRes, RefusesImpossibleSettings) {
  EXPECT_NE(refusal(block(0)).find("block_size: expected 1 or more, got 0"), std::string::npos)
      << refusal(block(0));
  EXPECT_NE(refusal(block(-3)).find("got -3"), std::string::npos);
  EXPECT_NE(refusal(block(9)).find("expected 1 to 8"), std::string::npos);
  EXPECT_NE(refusal({{"type", "attn_res"}, {"block_size", 2}}).find("unknown key"),
            std::string::npos);
  EXPECT_NE(refusal({{"type", "residual"}, {"block_size", 2}}).find("takes no settings"),
            std::string::npos);
  EXPECT_NE(refusal({{"type", "blok_attn_res"}}).find("did you mean block_attn_res?"),
            std::string::npos);
  EXPECT_NE(refusal({{"type", "magic"}}).find("residual, attn_res, block_attn_res"),
            std::string::npos);
  EXPECT_NE(refusal({{"type", "attn_res"}, {"norm_eps", "none"}}).find("per_source_count"),
            std::string::npos);
  EXPECT_EQ(refusal(block(8)), "accepted");
}

}  // namespace
}  // namespace attnres::attn_res_test
