#include <gtest/gtest.h>

#include "tests/depth/mechanisms/cross_layer.h"

namespace attnres::muddformer_test {
namespace {

using namespace testing;

const Json kMuddFormer = {{"type", "muddformer"}};
const Json kNormed = {{"type", "muddformer"}, {"pre_post_norm", true}};
constexpr int L = 8, J = L / 2;
constexpr int64_t d = 10;

double gelu(double x) {
  return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
}

// A_i = GELU(RMS(Z_i) W1) W2 + a_i: for each stream, the weights of the sources.
std::vector<Vector> stream_weights(const Bench& bench, int i, const Vector& newest,
                                   size_t streams) {
  const size_t sources = i + 1, hidden = 4 * sources;
  const Vector up = bench.values(2 * i, "weight_up"), down = bench.values(2 * i, "weight_down");
  const Vector fixed = bench.values(2 * i, "depth_weights");
  const Vector unit = normed(newest, Vector(d, 1.0));
  Vector u;
  for (size_t m = 0; m < hidden; ++m) u.push_back(gelu(dot(row_of(up, m, d), unit)));
  std::vector<Vector> weights;
  for (size_t c = 0; c < streams; ++c) {
    Vector& own = weights.emplace_back();
    for (size_t k = 0; k < sources; ++k) {
      own.push_back(dot(row_of(down, c * sources + k, hidden), u) + fixed[c * sources + k]);
    }
  }
  return weights;
}

StreamReads reference(const Bench& bench, const Vector& embedding, bool swap_key_and_value) {
  std::vector<Vector> Z = {embedding};
  StreamReads reads;
  for (int i = 0; i < J; ++i) {
    const auto norm = [&](const Vector& x, const char* role) {
      return normed(x, bench.values(2 * i, role));
    };
    Vector y, residual;
    if (i == 0) {
      const Vector x = norm(embedding, "input_norm");
      reads.push_back({{"mixed", embedding}});
      y = attention(0, x, x, x);
      residual = embedding;
    } else {
      auto A = stream_weights(bench, i, Z.back(), 4);
      if (swap_key_and_value) std::swap(A[1], A[2]);
      const Vector query = weighted(Z, A[0]), key = weighted(Z, A[1]), value = weighted(Z, A[2]);
      residual = weighted(Z, A[3]);
      reads.push_back({{"mixed", query}, {"key", key}, {"value", value}, {"residual", residual}});
      y = attention(2 * i, norm(query, "input_norm"), norm(key, "key_input_norm"),
                    norm(value, "value_input_norm"));
    }
    const Vector r = plus(residual, y);
    reads.push_back({{"mixed", r}});
    Z.push_back(plus(r, sublayer(2 * i + 1, normed(r, bench.values(2 * i + 1, "input_norm")))));
  }
  reads.push_back({{"mixed", weighted(Z, stream_weights(bench, J, Z.back(), 1)[0])}});
  return reads;
}

TEST(MuddFormer, MixesAsTheReferenceDoes) {
  Bench bench(kMuddFormer, d, L);
  bench.perturb(0.3);
  const Vector embedding = random_vector("embedding", 0, d);
  const StreamReads actual = stream_reads_by(bench, embedding, L);
  EXPECT_LT(largest_difference(actual, reference(bench, embedding, false)), 1e-12);
  EXPECT_GT(largest_difference(actual, reference(bench, embedding, true)), 1e-3);
}

// What is normed of the sums, and what they are added to.
enum class Norms { as_the_code, of_every_sum, of_no_sum, of_sums_as_well_as_the_newest };

// With norms before and after the sums.
StreamReads normed_reference(const Bench& bench, const Vector& embedding, Norms norms) {
  std::vector<Vector> S;
  StreamReads reads;
  Vector Z = embedding;
  for (int i = 0; i <= J; ++i) {
    const auto gain = [&](const char* role) { return bench.values(2 * i, role); };
    S.push_back(normed(Z, bench.values(i == 0 ? 0 : 2 * i - 1, "source_norm")));
    std::vector<Vector> X(4, embedding);
    if (i > 0) {
      X = stream_weights(bench, i, Z, i == J ? 1 : 4);
      for (size_t c = 0; c < X.size(); ++c) {
        X[c] = weighted(S, X[c]);
        const bool is_normed = c + 1 == X.size() || norms == Norms::of_every_sum;
        if (norms == Norms::of_sums_as_well_as_the_newest) X[c] = plus(X[c], Z);
        if (is_normed && norms != Norms::of_no_sum) X[c] = normed(X[c], gain("sum_norm"));
        if (norms != Norms::of_sums_as_well_as_the_newest) X[c] = plus(X[c], Z);
      }
    }
    reads.push_back({{"mixed", X[0]}});
    if (i == J) break;
    if (i > 0) reads.back().insert({{"key", X[1]}, {"value", X[2]}, {"residual", X[3]}});
    const Vector y = attention(2 * i, normed(X[0], gain("input_norm")),
                               normed(X[1], gain(i > 0 ? "key_input_norm" : "input_norm")),
                               normed(X[2], gain(i > 0 ? "value_input_norm" : "input_norm")));
    const Vector r = plus(X[3], y);
    reads.push_back({{"mixed", r}});
    Z = plus(r, sublayer(2 * i + 1, normed(r, bench.values(2 * i + 1, "input_norm"))));
  }
  return reads;
}

TEST(MuddFormer, WithNormsMixesAsTheReferenceDoes) {
  Bench bench(kNormed, d, L);
  bench.perturb(0.3);
  const Vector embedding = random_vector("embedding", 0, d);
  const StreamReads actual = stream_reads_by(bench, embedding, L);
  EXPECT_LT(largest_difference(actual, normed_reference(bench, embedding, Norms::as_the_code)),
            1e-12);
  for (const Norms norms :
       {Norms::of_every_sum, Norms::of_no_sum, Norms::of_sums_as_well_as_the_newest}) {
    EXPECT_GT(largest_difference(actual, normed_reference(bench, embedding, norms)), 1e-3);
  }
}

TEST(MuddFormer, StartsAsResidual) {
  Bench plain({{"type", "residual"}}, d, L);
  const Vector embedding = random_vector("embedding", 1, d);
  const StreamReads residual = stream_reads_by(plain, embedding, L);
  for (const Json& json : {kMuddFormer, kNormed}) {
    Bench bench(json, d, L);
    const StreamReads reads = stream_reads_by(bench, embedding, L);
    for (size_t l = 0; l <= L; ++l) {
      for (const auto& [stream, mixed] : reads[l]) {
        EXPECT_LT(largest_difference({mixed}, {residual[l].at("mixed")}), 1e-12) << l << stream;
      }
    }
  }
}

TEST(MuddFormer, WithNormsItsSumsOfTheResidualStartSmall) {
  const Bench bench(kNormed, d, L);
  EXPECT_EQ(bench.values(4, "sum_norm"), Vector(d, 1e-3));
  EXPECT_EQ(bench.values(3, "source_norm"), Vector(d, 1.0));
  EXPECT_EQ(bench.values(4, "depth_weights"), Vector(12, 0.0));
}

TEST(MuddFormer, AsksForInputsOfTheirOwnButInLayerZero) {
  const Bench bench(kMuddFormer, d, L);
  for (int site = 0; site < L; ++site) {
    EXPECT_EQ(bench.mixer->needs(site).separate_qkv, site % 2 == 0 && site > 0) << site;
  }
}

TEST(MuddFormer, IsLinearWithWeightsHeld) {
  for (const Json& json : {kMuddFormer, kNormed}) {
    Bench bench(json, d, L);
    bench.perturb(0.3);
    EXPECT_LT(linearity_defect(bench, d, L, true, 3), 1e-11);
    EXPECT_GT(linearity_defect(bench, d, L, false, 3), 1e-3);
  }
}

TEST(MuddFormer, TakesNoOtherSettings) {
  EXPECT_NE(refusal_of({{"type", "muddformer"}, {"streams", 2}}).find("unknown key"),
            std::string::npos);
}

}  // namespace
}  // namespace attnres::muddformer_test
