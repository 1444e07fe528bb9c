#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "tests/depth/plain_vectors.h"

namespace attnres::hybrid_norm_test {
namespace {

using namespace testing;

constexpr int kSublayers = 6;
constexpr size_t kWidth = 12;

Json settings(bool starred) {
  return {{"type", "hybrid_norm"}, {"first_layer_pre_norm", starred}};
}

Reads reference_reads(const Bench& bench, const Vector& embedding, bool starred) {
  Reads reads;
  Vector h = embedding;
  for (int l = 0; l < kSublayers; ++l) {
    Vector x = h;
    if (starred && l < 2) {
      x = normed(h, bench.values(l, "input_norm"));
    } else if (l % 2 == 1) {
      x = h = normed(h, bench.values(l, "input_norm"));  // u
    }
    reads.mixed.push_back(h);
    reads.inputs.push_back(x);
    h = plus(h, sublayer(l, x));
  }
  reads.mixed.push_back(h);
  reads.inputs.push_back(normed(h, bench.values(kSublayers, "input_norm")));
  return reads;
}

TEST(HybridNorm, MixesAsItsFormula) {
  const Vector embedding = random_vector("embedding", 0, kWidth);
  for (const bool starred : {false, true}) {
    Bench bench(settings(starred), kWidth, kSublayers);
    bench.perturb(0.3);
    const Reads expected = reference_reads(bench, embedding, starred);
    EXPECT_LT(largest_difference(reads_by(bench, embedding, kSublayers), expected), 1e-12);
  }
  // The setting is what the variants differ in.
  Bench plain(settings(false), kWidth, kSublayers), starred(settings(true), kWidth, kSublayers);
  EXPECT_GT(largest_difference(mixed_by(plain, embedding, kSublayers),
                               mixed_by(starred, embedding, kSublayers)),
            1e-2);
}

TEST(HybridNorm, StarredVariantStartsWithAPreNormLayer) {
  Bench hybrid(settings(true), kWidth, kSublayers),
      residual({{"type", "residual"}}, kWidth, kSublayers);
  const Vector embedding = random_vector("embedding", 0, kWidth);
  const Reads a = reads_by(hybrid, embedding, kSublayers),
              b = reads_by(residual, embedding, kSublayers);
  for (const int l : {0, 1}) {
    EXPECT_LT(largest_difference({a.mixed[l], a.inputs[l]}, {b.mixed[l], b.inputs[l]}), 1e-14) << l;
  }
  EXPECT_LT(largest_difference({a.mixed[2]}, {b.mixed[2]}), 1e-14);
  EXPECT_GT(largest_difference({a.inputs[2]}, {b.inputs[2]}), 1e-2);
}

// Each head's part of `channels` normed by itself, or all of them together.
Vector normed_heads(const Vector& channels, const Vector& gain, size_t per_norm) {
  Vector result;
  for (size_t begin = 0; begin < channels.size(); begin += per_norm) {
    const Vector part(channels.begin() + begin, channels.begin() + begin + per_norm);
    Vector gains;
    while (gains.size() < per_norm) gains.insert(gains.end(), gain.begin(), gain.end());
    for (const double value : normed(part, gains)) result.push_back(value);
  }
  return result;
}

TEST(HybridNorm, NormsQueriesKeysAndValuesPerHead) {
  constexpr int64_t kHeads = 3, kKvHeads = 1, kHeadWidth = 4;
  for (const bool starred : {false, true}) {
    Bench bench(settings(starred), MixerShape{.width = kWidth,
                                              .sublayers = kSublayers,
                                              .norm_eps = kEps,
                                              .heads = kHeads,
                                              .kv_heads = kKvHeads});
    bench.perturb(0.3);
    DepthState state = bench.mixer->start(at::zeros({1, kWidth}, at::kDouble));
    for (int l = 0; l < kSublayers; ++l) {
      const SublayerInput input = bench.mixer->read(state);
      EXPECT_EQ(bench.mixer->needs(l).adapt_heads, l % 2 == 0);
      EXPECT_EQ(static_cast<bool>(input.adapt_heads), l % 2 == 0);
      if (input.adapt_heads) {
        const Vector q = random_vector("q", l, kHeads * kHeadWidth);
        const Vector k = random_vector("k", l, kKvHeads * kHeadWidth);
        const Vector v = random_vector("v", l, kKvHeads * kHeadWidth);
        AttentionHeads heads = {vector_tensor(q).view({1, kHeads, kHeadWidth}),
                                vector_tensor(k).view({1, kKvHeads, kHeadWidth}),
                                vector_tensor(v).view({1, kKvHeads, kHeadWidth})};
        input.adapt_heads(heads);
        const std::vector<Vector> adapted = {as_vector(heads.q), as_vector(heads.k),
                                             as_vector(heads.v)};
        const auto expected = [&](size_t q_per_norm) -> std::vector<Vector> {
          return {normed_heads(q, bench.values(l, "q_norm"), q_per_norm),
                  normed_heads(k, bench.values(l, "k_norm"), kHeadWidth),
                  normed_heads(v, bench.values(l, "v_norm"), kHeadWidth)};
        };
        EXPECT_LT(largest_difference(adapted, expected(kHeadWidth)), 1e-12);
        EXPECT_GT(largest_difference(adapted, expected(kHeads * kHeadWidth)), 1e-2);
      }
      bench.mixer->write(state, {at::ones({1, kWidth}, at::kDouble)});
    }
  }
}

}  // namespace
}  // namespace attnres::hybrid_norm_test
