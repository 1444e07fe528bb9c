#include <gtest/gtest.h>

#include "tests/depth/plain_vectors.h"

namespace attnres::siamese_norm_test {
namespace {

using namespace testing;

constexpr int kSublayers = 6;
constexpr size_t kWidth = 12;

Json settings(bool depth_scaling, bool input_norm) {
  return {{"type", "siamese_norm"}, {"depth_scaling", depth_scaling}, {"input_norm", input_norm}};
}

Reads reference_reads(const Bench& bench, const Vector& embedding, bool depth_scaling,
                      bool input_norm) {
  Reads reads;
  Vector x = normed(embedding, bench.values(0, "x_norm")), y = embedding;
  for (int l = 0; l <= kSublayers; ++l) {
    const Vector sum = plus(x, normed(y, bench.values(l, "y_norm")));
    const Vector input = input_norm ? normed(sum, bench.values(l, "input_norm")) : sum;
    reads.mixed.push_back(sum);
    reads.inputs.push_back(input);
    if (l == kSublayers) break;
    const Vector o = sublayer(l, input);
    const int layer = l / 2;
    x = normed(plus(x, o, depth_scaling ? 1 / std::sqrt(2.0 * (layer + 1)) : 1),
               bench.values(l + 1, "x_norm"));
    y = plus(y, o);
  }
  return reads;
}

TEST(SiameseNorm, MixesAsItsFormulaWithEverySetting) {
  const Vector embedding = random_vector("embedding", 0, kWidth);
  std::vector<Reads> all;
  for (const bool depth_scaling : {false, true}) {
    for (const bool input_norm : {false, true}) {
      Bench bench(settings(depth_scaling, input_norm), kWidth, kSublayers);
      bench.perturb(0.3);
      all.push_back(reads_by(bench, embedding, kSublayers));
      const Reads expected = reference_reads(bench, embedding, depth_scaling, input_norm);
      EXPECT_LT(largest_difference(all.back(), expected), 1e-12);
    }
  }
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t j = 0; j < i; ++j) EXPECT_GT(largest_difference(all[i], all[j]), 1e-2);
  }
}

TEST(SiameseNorm, OneStreamIsResidualTheOtherBounded) {
  Bench bench({{"type", "siamese_norm"}}, kWidth, kSublayers);
  const Vector embedding = random_vector("embedding", 0, kWidth, 30);
  DepthState state = bench.mixer->start(vector_tensor(embedding).view({1, kWidth}));
  Vector sum = embedding;
  for (int l = 0; l < kSublayers; ++l) {
    const Vector o = sublayer(l, as_vector(bench.mixer->read(state).x));
    bench.mixer->write(state, {vector_tensor(o).view({1, kWidth})});
    sum = plus(sum, o);
    EXPECT_LT(largest_difference({as_vector(bench.mixer->running_state(state))}, {sum}), 1e-12);
    EXPECT_LT(reference::rms(as_vector(state.open[1]), 0), 4);
  }
}

}  // namespace
}  // namespace attnres::siamese_norm_test
