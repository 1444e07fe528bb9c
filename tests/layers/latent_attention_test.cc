// Latent attention against its formulas in plain loops: as Kimi Linear 48B has it, as Kimi K3 and
// as DeepSeek-V3.
#include "attnres/layers/latent_attention.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "attnres/support/config.h"
#include "attnres/support/error.h"
#include "tests/layers/plain_layers.h"
#include "tests/layers/side_by_side.h"
#include "tests/tolerances.h"
#include "tests/train/tensor_bytes.h"

namespace attnres::latent_attention_test {
namespace {

using testing::add_scaled;
using testing::as_vector;
using testing::close;
using ::testing::HasSubstr;
using testing::parameter;
using testing::random_tensor;
using testing::sigmoid;
using testing::times;
using testing::Vector;

constexpr int64_t kWidth = 10, kHeads = 3, kBatch = 2, kTokens = 9;

struct Variant {
  const char* name;
  LatentAttentionSettings settings;
};
// Values narrower and wider than keys, and a latent longer and shorter than what it expands to.
const Variant kVariants[] = {
    {"48B", {.kv_rank = 7, .key_width = 4, .shared_key_width = 2, .value_width = 3}},
    {"K3",
     {.kv_rank = 5,
      .q_rank = 6,
      .key_width = 3,
      .shared_key_width = 2,
      .value_width = 8,
      .output_gate = true}},
    {"DeepSeek",
     {.kv_rank = 5,
      .q_rank = 6,
      .key_width = 3,
      .shared_key_width = 4,
      .value_width = 5,
      .rotary = true,
      .score_scale = 0.6}},
};

// With a magnitude, as YaRN has.
RotaryFrequencies frequencies_of(const LatentAttentionSettings& settings) {
  RotaryFrequencies frequencies = rotary_frequencies(settings.shared_key_width, 5);
  frequencies.magnitude = 1.2;
  return frequencies;
}

struct Bench {
  explicit Bench(const LatentAttentionSettings& settings, at::ScalarType dtype = at::kDouble)
      : parameters(dtype, 1),
        layer(settings, kHeads, {.width = kWidth, .init_std = 0.4}, parameters,
              frequencies_of(settings)) {
    testing::move_all(parameters);
  }
  at::Tensor operator()(const at::Tensor& x, testing::SideBySide* decoded = nullptr) const {
    return testing::forward(layer, {.x = x}, decoded);
  }
  ParameterRegistry parameters;
  LatentAttention layer;
};

struct Mistakes {
  bool normed_shared_key = false, scale_of_own_key = false, no_gate = false, no_positions = false;
};

// One sequence, [T, D].
at::Tensor plain(const LatentAttentionSettings& s, const ParameterRegistry& parameters,
                 const at::Tensor& x_TD, const Mistakes& wrong = {}) {
  const auto weight = [&](const char* role) { return parameter(parameters, role); };
  const size_t R = s.kv_rank, K = s.key_width, S = s.shared_key_width, V = s.value_width;
  std::vector<Vector> latents, shared;
  Vector result;
  for (const at::Tensor& token : x_TD.unbind(0)) {
    const Vector x = as_vector(token);
    Vector a = times(weight("kv_a_proj_with_mqa"), x);
    Vector b(a.begin() + R, a.end());
    const auto position = static_cast<double>(shared.size());
    const bool has_positions = s.rotary && !wrong.no_positions;
    if (has_positions) b = testing::turned(b, frequencies_of(s), position);
    a.resize(R);
    latents.push_back(testing::rms_normed(a, weight("kv_a_layernorm"), 1e-6));
    shared.push_back(wrong.normed_shared_key ? testing::rms_normed(b, at::ones(S), 1e-6) : b);
    Vector q = s.q_rank > 0
                   ? times(weight("q_b_proj"), testing::rms_normed(times(weight("q_a_proj"), x),
                                                                   weight("q_a_layernorm"), 1e-6))
                   : times(weight("q_proj"), x);
    Vector o;
    for (size_t h = 0; h < kHeads; ++h) {
      const size_t first = h * (K + V);
      Vector scores, sum(V);
      double total = 0;
      if (has_positions) {
        const auto own = q.begin() + static_cast<int64_t>(h * (K + S) + K);
        const Vector part = testing::turned(Vector(own, own + S), frequencies_of(s), position);
        std::copy(part.begin(), part.end(), own);
      }
      const double usual = 1 / std::sqrt(wrong.scale_of_own_key ? K : K + S);
      const double scale = s.score_scale > 0 && !wrong.scale_of_own_key ? s.score_scale : usual;
      for (size_t n = 0; n < latents.size(); ++n) {
        const Vector key = times(weight("kv_b_proj"), latents[n], first, first + K);
        double score = 0;
        for (size_t i = 0; i < K; ++i) score += q[h * (K + S) + i] * key[i];
        for (size_t i = 0; i < S; ++i) score += q[h * (K + S) + K + i] * shared[n][i];
        scores.push_back(std::exp(scale * score));
        total += scores.back();
      }
      for (size_t n = 0; n < latents.size(); ++n) {
        add_scaled(scores[n] / total,
                   times(weight("kv_b_proj"), latents[n], first + K, first + K + V), sum);
      }
      o.insert(o.end(), sum.begin(), sum.end());
    }
    if (s.output_gate && !wrong.no_gate) {
      const Vector gate = times(weight("g_proj"), x);
      for (size_t i = 0; i < o.size(); ++i) o[i] *= sigmoid(gate[i]);
    }
    const Vector y = times(weight("o_proj"), o);
    result.insert(result.end(), y.begin(), y.end());
  }
  return at::tensor(result, at::kDouble).view(x_TD.sizes());
}

at::Tensor plain_batch(const LatentAttentionSettings& settings, const ParameterRegistry& parameters,
                       const at::Tensor& x_BTD, const Mistakes& wrong = {}) {
  std::vector<at::Tensor> sequences;
  for (const at::Tensor& x_TD : x_BTD.unbind(0)) {
    sequences.push_back(plain(settings, parameters, x_TD, wrong));
  }
  return at::stack(sequences);
}

TEST(LatentAttention, IsItsFormula) {
  for (const auto& [name, settings] : kVariants) {
    for (const auto& [dtype, tolerance] : {std::pair{at::kDouble, 1e-12}, {at::kFloat, 2e-5}}) {
      const Bench bench(settings, dtype);
      const at::Tensor x = random_tensor({kBatch, kTokens, kWidth}, 1, dtype);
      const at::Tensor y = bench(x);
      const auto expected = [&, &settings = settings](const Mistakes& wrong) {
        return plain_batch(settings, bench.parameters, x, wrong);
      };
      EXPECT_TRUE(close(y, expected({}), tolerance)) << name;
      EXPECT_FALSE(close(y, expected({.normed_shared_key = true}), 1e-3)) << name;
      EXPECT_FALSE(close(y, expected({.scale_of_own_key = true}), 1e-3)) << name;
      EXPECT_NE(bool(close(y, expected({.no_gate = true}), 1e-3)), settings.output_gate) << name;
      EXPECT_NE(bool(close(y, expected({.no_positions = true}), 1e-3)), settings.rotary) << name;
    }
  }
}

TEST(LatentAttention, GradientsAreThoseOfDifferences) {
  for (const auto& [name, settings] : kVariants) {
    SCOPED_TRACE(name);
    const Bench bench(settings);
    const at::Tensor x = random_tensor({1, 4, kWidth}, 2);
    testing::expect_gradients([&] { return bench(x); }, x, bench.parameters);
  }
}

TEST(LatentAttention, AbsorbedIsExpanded) {
  for (const auto& [name, settings] : kVariants) {
    const int64_t key = settings.key_width + settings.shared_key_width;
    for (const int64_t tokens : {1, 3, 8}) {
      LatentHeads heads = {
          random_tensor({kBatch, tokens, kHeads, key}, 3),
          random_tensor({kBatch, 8, settings.kv_rank + settings.shared_key_width}, 4),
          random_tensor({kHeads * (settings.key_width + settings.value_width), settings.kv_rank},
                        5)};
      const at::Tensor absorbed = attend_absorbed(heads, settings);
      EXPECT_TRUE(close(absorbed, attend_expanded(heads, settings), 1e-12)) << name << tokens;
      // In blocks of one query, and of three, of which the last is smaller.
      for (const int64_t queries : {1, 3}) {
        const int64_t scores = kBatch * kHeads * 8 * queries;
        EXPECT_TRUE(close(attend_absorbed(heads, settings, {}, scores), absorbed, 1e-12))
            << name << tokens << " in blocks of " << queries;
      }
      heads.latents_BNC = heads.latents_BNC.flip(1);
      EXPECT_EQ(tokens > 1, !close(absorbed, attend_expanded(heads, settings), 1e-3));
    }
  }
}

TEST(LatentAttention, AbsorbsWhereFewTokensMeetMany) {
  const LatentAttentionSettings kimi = {
      .kv_rank = 512, .key_width = 128, .shared_key_width = 64, .value_width = 128};
  EXPECT_TRUE(absorbing_is_cheaper(1, 4096, kimi));
  EXPECT_TRUE(absorbing_is_cheaper(100, 4096, kimi));
  EXPECT_FALSE(absorbing_is_cheaper(200, 4096, kimi));
  EXPECT_FALSE(absorbing_is_cheaper(4096, 4096, kimi));
  EXPECT_FALSE(absorbing_is_cheaper(8, 8, {.kv_rank = 1, .key_width = 9, .value_width = 9}));
}

TEST(LatentAttention, HoldsNoScoresOfAllQueriesByAllKeys) {
  const at::NoGradGuard not_recording;
  const LatentAttentionSettings settings = {
      .kv_rank = 8, .key_width = 64, .shared_key_width = 8, .value_width = 64};
  constexpr int64_t kQueries = 512, kKeys = 2048;
  ASSERT_TRUE(absorbing_is_cheaper(kQueries, kKeys, settings));
  const LatentHeads heads = {random_tensor({1, kQueries, kHeads, 72}, 3, at::kFloat),
                             random_tensor({1, kKeys, 16}, 4, at::kFloat),
                             random_tensor({kHeads * 128, 8}, 5, at::kFloat)};
  const auto most_of = [&](int64_t most_scores) {
    const testing::TensorBytesOfThread bytes;
    attend_absorbed(heads, settings, {}, most_scores);
    return bytes.peak();
  };
  constexpr int64_t kAllScores = kQueries * kKeys * kHeads;
  EXPECT_LT(most_of(kAllScores / 16), kAllScores * 4);
  EXPECT_GT(most_of(kAllScores), kAllScores * 4);  // negative control: in one block
}

TEST(LatentAttention, DecodedInPiecesIsTheWhole) {
  const at::NoGradGuard not_recording;
  for (const auto& [name, settings] : kVariants) {
    const Bench bench(settings);
    const at::Tensor x = random_tensor({kBatch, kTokens, kWidth}, 1), whole = bench(x);
    for (const std::vector<int64_t>& pieces : std::vector<std::vector<int64_t>>{
             {9}, {6, 2, 1}, {4, 5}, {1, 1, 1, 1, 1, 1, 1, 1, 1}, {2, 1, 6}}) {
      testing::SideBySide decoded({bench.layer.kept()}, kBatch, kTokens);
      std::vector<at::Tensor> outputs;
      for (const at::Tensor& piece : x.split_with_sizes(pieces, 1)) {
        outputs.push_back(bench(piece, &decoded));
      }
      EXPECT_TRUE(close(at::cat(outputs, 1), whole, 1e-12)) << name << " " << pieces.size();
    }
  }
}

TEST(LatentAttention, SeesNoLaterToken) {
  for (const auto& [name, settings] : kVariants) {
    const Bench bench(settings);
    const at::Tensor x = random_tensor({kBatch, kTokens, kWidth}, 1);
    at::Tensor changed = x.clone();
    changed.narrow(1, 5, 1).add_(1);
    const at::Tensor difference = (bench(changed) - bench(x)).abs().amax({0, 2});
    EXPECT_EQ(difference.narrow(0, 0, 5).max().item<double>(), 0) << name;
    EXPECT_GT(difference.narrow(0, 5, kTokens - 5).min().item<double>(), 1e-4) << name;
  }
}

TEST(LatentAttention, ParametersAreWhatTheyAre) {
  ParameterRegistry parameters(at::kDouble, 1);
  const LatentAttentionSettings& k3 = kVariants[1].settings;
  LayerPlace place = {.width = 64, .needs = {.init_gain = 0.5, .output_init_gain = 0.5}};
  const LatentAttention scaled(k3, kHeads, place, parameters);
  for (const Parameter& p : parameters.all()) {
    const bool norm = p.role.find("layernorm") != std::string::npos;
    EXPECT_EQ(p.kind, norm ? ParameterKind::norm_gain : ParameterKind::matrix) << p.role;
  }
  ParameterRegistry others(at::kDouble, 1);
  place.needs = {};
  const LatentAttention plain(k3, kHeads, place, others);
  const auto gain = [&](const char* role) {
    return parameter(parameters, role) / parameter(others, role);
  };
  const auto expect_all = [](const at::Tensor& actual, double expected) {
    EXPECT_LT((actual - expected).abs().max().item<double>(), 1e-12) << expected;
  };
  for (const char* role : {"q_a_proj", "q_b_proj", "kv_a_proj_with_mqa"}) expect_all(gain(role), 1);
  const at::Tensor kv_b = gain("kv_b_proj").unflatten(0, {kHeads, -1});
  expect_all(kv_b.narrow(1, 0, k3.key_width), 1);
  expect_all(kv_b.narrow(1, k3.key_width, k3.value_width), 0.5);
  expect_all(gain("g_proj"), 0.5);
  expect_all(gain("o_proj"), 0.25);
}

std::string refusal(const std::function<void()>& f) {
  try {
    f();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(LatentAttention, FillsInAndRefusesSettings) {
  LatentAttentionSettings settings;
  settings.resolve(64, 4, "model.latent_attention");
  EXPECT_EQ(settings.kv_rank, 32);
  EXPECT_EQ(settings.key_width, 16);
  EXPECT_EQ(settings.shared_key_width, 8);
  EXPECT_EQ(settings.value_width, 16);
  EXPECT_EQ(settings.q_rank, 0);

  const auto message = [](LatentAttentionSettings bad, int64_t width = 64) {
    return refusal([&] {
      check_config(bad, "latent");
      bad.resolve(width, 4, "latent");
    });
  };
  EXPECT_THAT(message({.kv_rank = -1}),
              HasSubstr("latent.kv_rank: expected a whole number from 0 to 1048576, got -1"));
  EXPECT_THAT(message({.q_rank = -2}), HasSubstr("latent.q_rank"));
  EXPECT_THAT(message({.key_width = -3}), HasSubstr("latent.key_width"));
  EXPECT_THAT(message({.value_width = -3}), HasSubstr("latent.value_width"));
  EXPECT_THAT(message({.shared_key_width = 3, .rotary = true}),
              HasSubstr("latent.shared_key_width: rotary positions need an even one, got 3"));
  EXPECT_THAT(message({.score_scale = -1}), HasSubstr("latent.score_scale"));
  EXPECT_THAT(message({.key_width = 1}), HasSubstr("latent.shared_key_width"));
}

TEST(LatentAttention, RefusesWhatItCannotServe) {
  const auto message = [](const SublayerNeeds& needs) {
    return refusal([&] {
      ParameterRegistry parameters(at::kDouble, 1);
      LatentAttention(kVariants[0].settings, kHeads, {.width = kWidth, .needs = needs}, parameters);
    });
  };
  EXPECT_EQ(message({}), "");
  EXPECT_THAT(message({.separate_qkv = true}),
              HasSubstr("latent attention has no separate inputs"));
  EXPECT_THAT(message({.adapt_heads = true}),
              HasSubstr("latent attention has no keys and values of its own"));
}

}  // namespace
}  // namespace attnres::latent_attention_test
