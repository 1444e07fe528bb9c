#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include "tests/depth/mechanisms/cross_layer.h"

namespace attnres::ancre_test {
namespace {

using namespace testing;

constexpr int L = 8;
constexpr int64_t d = 10;

Json ancre(double temperature) {
  return {{"type", "ancre"}, {"temperature", temperature}};
}

Vector transform(const Bench& bench, int l, const Vector& h) {
  return sublayer(l, normed(h, bench.values(l, "input_norm")));
}

// X_{j+1} = G_j(X_j) + sum_{i<=j} softmax_i(c_j / tau) X_i
std::vector<Vector> reference(const Bench& bench, const Vector& embedding, double temperature) {
  std::vector<Vector> X = {embedding}, mixed;
  for (int j = 0; j < L / 2; ++j) {
    const Vector c = j == 0 ? Vector{0} : bench.values(2 * j + 1, "connections");
    Vector p;
    double total = 0;
    for (const double value : c) p.push_back(std::exp(value / temperature));
    for (const double value : p) total += value;
    const Vector r = plus(X[j], transform(bench, 2 * j, X[j]));
    const Vector G = plus(r, transform(bench, 2 * j + 1, r));
    mixed.push_back(X[j]);
    mixed.push_back(r);
    X.push_back(plus(G, weighted(X, times(1 / total, p))));
  }
  mixed.push_back(X.back());
  return mixed;
}

TEST(Ancre, MixesAsTheReferenceDoes) {
  const Vector embedding = random_vector("embedding", 0, d);
  for (const double temperature : {0.01, 0.5}) {
    Bench bench(ancre(temperature), d, L);
    bench.perturb(0.3);
    const auto actual = mixed_by(bench, embedding, L);
    EXPECT_LT(largest_difference(actual, reference(bench, embedding, temperature)), 1e-12);
    EXPECT_GT(largest_difference(actual, reference(bench, embedding, 2 * temperature + 1)), 1e-3);
  }
}

TEST(Ancre, StartsAddingTheMeanOfTheStates) {
  const Vector embedding = random_vector("embedding", 1, d);
  Bench bench({{"type", "ancre"}}, d, L), plain({{"type", "residual"}}, d, L);
  const auto reads = mixed_by(bench, embedding, L), residual = mixed_by(plain, embedding, L);
  // Before the first shortcut it is residual; after it, residual and the embedding once more.
  EXPECT_LT(largest_difference({reads[1]}, {residual[1]}), 1e-12);
  EXPECT_LT(largest_difference({reads[2]}, {plus(residual[2], embedding)}), 1e-12);
  // Afterwards the mean of the states.
  const Vector inner = plus(reads[3], transform(bench, 3, reads[3]));
  const Vector mean = times(0.5, plus(reads[0], reads[2]));
  EXPECT_LT(largest_difference({reads[4]}, {plus(inner, mean)}), 1e-12);
}

TEST(Ancre, OneConnectionCanTakeAllWeight) {
  const Vector embedding = random_vector("embedding", 2, d);
  Bench bench({{"type", "ancre"}}, d, L);
  assign(bench.at(3, "connections"), at::tensor({0.0, 1.0}, at::kDouble));  // e^100 to 1
  const auto reads = mixed_by(bench, embedding, L);
  const Vector inner = plus(reads[3], transform(bench, 3, reads[3]));
  EXPECT_LT(largest_difference({reads[4]}, {plus(inner, reads[2])}), 1e-12);
}

TEST(Ancre, IsLinearWithWeightsHeld) {
  Bench bench(ancre(0.5), 6, 6);
  bench.perturb(0.3);
  EXPECT_LT(linearity_defect(bench, 6, 6, true, 3), 1e-12);
}

TEST(Ancre, RefusesImpossibleTemperatures) {
  EXPECT_NE(refusal_of(ancre(0)).find("expected more than 0, got 0"), std::string::npos);
  EXPECT_NE(refusal_of(ancre(-1)).find("got -1"), std::string::npos);
  EXPECT_EQ(refusal_of(ancre(2)), "accepted");
}

}  // namespace
}  // namespace attnres::ancre_test
