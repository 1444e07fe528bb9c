// The setting value_query of attention residuals, with whatever else they are set to, against plain
// loops.
#include <gtest/gtest.h>

#include "tests/depth/mechanisms/cross_layer.h"

namespace attnres::value_query_test {
namespace {

using namespace testing;

constexpr int64_t kWidth = 12;
constexpr int kSublayers = 8;

struct Settings {
  const char* name;
  Json json;
};

Json with(const Settings& settings, bool value_query) {
  Json json = {{"type", "block_attn_res"}, {"block_size", 3}};
  json.update(settings.json);
  if (value_query) json["value_query"] = true;
  return json;
}

double inverse_rms(const Vector& x) {
  return 1 / std::sqrt(dot(x, x) / static_cast<double>(x.size()) + kEps);
}

// The embedding, what finished blocks are, and the newest block's sum.
std::vector<Vector> sources_of(const std::vector<Vector>& v, const Json& settings) {
  const size_t S = settings["block_size"], outputs = v.size() - 1;
  std::vector<Vector> sources = {v[0]};
  for (size_t begin = 0; begin < outputs; begin += S) {
    const bool normed = settings.value("block_summary", "sum") == "rms" && begin + S <= outputs;
    Vector sum(kWidth, 0.0);
    for (size_t i = begin; i < std::min(begin + S, outputs); ++i) {
      sum = plus(sum, times(normed ? inverse_rms(v[i + 1]) : 1, v[i + 1]));
    }
    sources.push_back(sum);
  }
  return sources;
}

// sum_i softmax_i(c q . (g * RMS(v_i))) v_i, for each group of channels.
Vector mixture(const Bench& bench, int l, const char* role, const std::vector<Vector>& sources,
               const Json& settings) {
  const Vector query = bench.values(l, role), gain = bench.values(l, "key_norm");
  const bool learned = settings.value("score_scale", Json(1)) == "learned";
  const double scale = learned ? std::exp(bench.values(l, "log_score_scale")[0]) : 1;
  const size_t group = kWidth / settings.value("heads", 1);
  Vector h(kWidth, 0.0);
  for (size_t begin = 0; begin < kWidth; begin += group) {
    Vector weights;
    double total = 0;
    for (const Vector& v : sources) {
      double score = 0;
      for (size_t c = begin; c < begin + group; ++c) {
        score += scale * query[c] * gain[c] * v[c] * inverse_rms(v);
      }
      weights.push_back(std::exp(score));
      total += weights.back();
    }
    for (size_t i = 0; i < sources.size(); ++i) {
      for (size_t c = begin; c < begin + group; ++c) h[c] += weights[i] / total * sources[i][c];
    }
  }
  return h;
}

StreamReads reference(const Bench& bench, const Json& settings, const Vector& embedding,
                      const char* of_values = "value_query") {
  std::vector<Vector> v = {embedding};
  StreamReads reads;
  for (int l = 0; l <= kSublayers; ++l) {
    const auto sources = sources_of(v, settings);
    const auto normed_by_site = [&](const Vector& h) {
      return normed(h, bench.values(l, "input_norm"));
    };
    const Vector h = l == 0 ? embedding : mixture(bench, l, "pseudo_query", sources, settings);
    reads.push_back({{"mixed", h}});
    if (l == kSublayers) break;
    const Vector x = normed_by_site(h);
    if (l % 2 == 1) {
      v.push_back(sublayer(l, x));
      continue;
    }
    if (l > 0) reads.back()["value"] = mixture(bench, l, of_values, sources, settings);
    const Vector value = l > 0 ? normed_by_site(reads.back()["value"]) : x;
    v.push_back(attention(l, x, x, value));
  }
  return reads;
}

class ValueQuery : public ::testing::TestWithParam<Settings> {
 protected:
  const Json json_ = with(GetParam(), true);
  const Vector embedding_ = random_vector("embedding", 0, kWidth);
};

INSTANTIATE_TEST_SUITE_P(Settings, ValueQuery,
                         ::testing::Values(Settings{"full", {{"block_size", 1}}},
                                           Settings{"block", {{"block_size", 3}}},
                                           Settings{"layers", {{"block_size", 2}}},
                                           Settings{"multi_head", {{"heads", 4}}},
                                           Settings{"learned_scale", {{"score_scale", "learned"}}},
                                           Settings{"rms_summary", {{"block_summary", "rms"}}}),
                         [](const auto& info) { return info.param.name; });

TEST_P(ValueQuery, MixesAsItsEquationSays) {
  Bench bench(json_, kWidth, kSublayers);
  bench.perturb(0.5);
  const StreamReads actual = stream_reads_by(bench, embedding_, kSublayers);
  EXPECT_LT(largest_difference(reference(bench, json_, embedding_), actual), 1e-12);
  EXPECT_GT(largest_difference(reference(bench, json_, embedding_, "pseudo_query"), actual), 1e-3);
}

TEST_P(ValueQuery, ThatIsTheOtherGivesTheMechanismWithout) {
  Bench bench(json_, kWidth, kSublayers), plain(with(GetParam(), false), kWidth, kSublayers);
  for (Bench* any : {&bench, &plain}) any->perturb(0.5);
  for (int l = 2; l < kSublayers; l += 2) {
    assign(bench.at(l, "value_query"), bench.at(l, "pseudo_query").detach());
  }
  const StreamReads reads = stream_reads_by(bench, embedding_, kSublayers);
  const StreamReads expected = stream_reads_by(plain, embedding_, kSublayers);
  for (int l = 0; l <= kSublayers; ++l) {
    EXPECT_EQ(reads[l].contains("value"), l % 2 == 0 && l > 0 && l < kSublayers) << l;
    for (const auto& [stream, mixed] : reads[l]) {
      EXPECT_EQ(largest_difference({mixed}, {expected[l].at("mixed")}), 0) << l << stream;
    }
  }
}

TEST_P(ValueQuery, IsLinearWithWeightsHeld) {
  Bench bench(json_, kWidth, kSublayers);
  bench.perturb(0.5);
  EXPECT_LT(linearity_defect(bench, kWidth, kSublayers, true), 1e-11);
  EXPECT_GT(linearity_defect(bench, kWidth, kSublayers, false), 1e-3);
}

TEST(ValueQueries, AreOfAttentionsThatReadMoreThanTheEmbedding) {
  const Bench bench({{"type", "attn_res"}, {"value_query", true}}, kWidth, kSublayers);
  for (int l = 0; l <= kSublayers; ++l) {
    const bool has_one = l % 2 == 0 && l > 0 && l < kSublayers;
    EXPECT_EQ(bench.parameters.find(l, "value_query") != nullptr, has_one) << l;
    if (l == kSublayers) break;
    EXPECT_EQ(bench.mixer->needs(l).separate_value, has_one) << l;
    EXPECT_FALSE(bench.mixer->needs(l).separate_qkv) << l;
  }
}

}  // namespace
}  // namespace attnres::value_query_test
