#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/depth/mechanisms/cross_layer.h"
#include "tests/layers/side_by_side.h"

namespace attnres::mrla_test {
namespace {

using namespace testing;

const Json kMrla = {{"type", "mrla"}};
constexpr int L = 6;
constexpr int64_t d = 12, T = 5;

using Sequence = std::vector<Vector>;  // by token

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

// The sigmoid of a convolution across channels.
Vector gate(const Vector& taps, const Vector& v) {
  const int m = static_cast<int>(taps.size()), width = static_cast<int>(v.size());
  Vector result;
  for (int c = 0; c < width; ++c) {
    double sum = 0;
    for (int s = 0; s < m; ++s) {
      const int from = c + s - m / 2;
      if (from >= 0 && from < width) sum += taps[s] * v[from];
    }
    result.push_back(sigmoid(sum));
  }
  return result;
}

Vector product(Vector a, const Vector& b) {
  for (size_t c = 0; c < a.size(); ++c) a[c] *= b[c];
  return a;
}

Sequence values(const Vector& taps, const Sequence& v) {
  Sequence u;
  for (int t = 0; t < static_cast<int>(v.size()); ++t) {
    Vector sum(v[t].size(), 0.0);
    for (int s = 0; s < 3; ++s) {
      if (t - 2 + s < 0) continue;
      sum = plus(sum, product(row_of(taps, s, v[t].size()), v[t - 2 + s]));
    }
    u.push_back(sum);
  }
  return u;
}

// h_l[t] = sum_i sg(q_l[t]) sg(k_i[t]) u_i[t] of every site.
std::vector<Sequence> reference(const Bench& bench, const Sequence& embedding) {
  std::vector<Sequence> sources = {embedding}, mixed;
  for (int l = 0; l <= L; ++l) {
    Sequence h(embedding.size(), Vector(d, 0.0));
    for (int i = 0; i <= l; ++i) {
      const Sequence u = values(bench.values(i, "value_conv"), sources[i]);
      for (size_t t = 0; t < h.size(); ++t) {
        const Vector q = gate(bench.values(l, "query_conv"), sources[l][t]);
        const Vector k = gate(bench.values(i, "key_conv"), sources[i][t]);
        h[t] = plus(h[t], product(product(q, k), u[t]));
      }
    }
    mixed.push_back(h);
    if (l == L) break;
    Sequence y;
    for (const Vector& token : h)
      y.push_back(sublayer(l, normed(token, bench.values(l, "input_norm"))));
    sources.push_back(y);
  }
  return mixed;
}

at::Tensor as_tensor(const Sequence& sequence) {
  Vector all;
  for (const Vector& token : sequence) all.insert(all.end(), token.begin(), token.end());
  return vector_tensor(all).view({static_cast<int64_t>(sequence.size()), d});
}

Sequence as_sequence(const at::Tensor& x_TD) {
  Sequence sequence;
  const Vector all = testing::as_vector(x_TD);
  for (int64_t t = 0; t < x_TD.size(0); ++t) sequence.push_back(row_of(all, t, d));
  return sequence;
}

// What the mixer's sites read of a whole sequence, or of the next tokens of one that is decoded.
std::vector<Sequence> mixed_of(const Bench& bench, const Sequence& embedding,
                               SideBySide* decoded = nullptr) {
  DepthState state = bench.mixer->start(as_tensor(embedding));
  MixingAnalysis analysis;
  state.analysis = &analysis;
  const auto tokens = static_cast<int64_t>(embedding.size());
  if (decoded != nullptr) state.sequence.spans = std::make_shared<Spans>(decoded->next(tokens));
  std::vector<Sequence> mixed;
  for (int l = 0; l <= L; ++l) {
    state.sequence.layer = l;
    const Sequence x = as_sequence(bench.mixer->read(state).x);
    const ReadTrace& trace = analysis.read;
    mixed.push_back(as_sequence(trace.mixed));
    if (l == L) break;
    Sequence y;
    for (const Vector& token : x) y.push_back(sublayer(l, token));
    bench.mixer->write(state, {as_tensor(y)});
  }
  return mixed;
}

Sequence random_sequence() {
  Sequence sequence;
  for (int64_t t = 0; t < T; ++t) sequence.push_back(random_vector("token", t, d));
  return sequence;
}

double difference(const std::vector<Sequence>& a, const std::vector<Sequence>& b) {
  double largest = 0;
  for (size_t l = 0; l < a.size(); ++l) largest = std::max(largest, largest_difference(a[l], b[l]));
  return largest;
}

TEST(Mrla, MixesAsTheReferenceDoes) {
  Bench bench(kMrla, d, L);
  bench.perturb(0.3);
  const Sequence embedding = random_sequence();
  const auto actual = mixed_of(bench, embedding);
  EXPECT_LT(difference(actual, reference(bench, embedding)), 1e-12);
  // Negative control: one source's value kernel reversed in time.
  at::Tensor kernel = bench.at(2, "value_conv").detach();
  kernel.copy_(kernel.flip(0));
  EXPECT_GT(difference(actual, reference(bench, embedding)), 1e-3);
}

TEST(Mrla, StartsAsAQuarterOfTheResidualStream) {
  Bench bench(kMrla, d, L);
  const Sequence embedding = random_sequence();
  DepthState state = bench.mixer->start(as_tensor(embedding));
  MixingAnalysis analysis;
  state.analysis = &analysis;
  at::Tensor sum = as_tensor(embedding);
  for (int l = 0; l <= L; ++l) {
    bench.mixer->read(state);
    const ReadTrace& trace = analysis.read;
    EXPECT_LT((trace.mixed - sum / 4).abs().max().item<double>(), 1e-12) << l;
    if (l == L) break;
    const at::Tensor y = at::sin(sum + l);
    sum = sum + y;
    bench.mixer->write(state, {y});
  }
}

TEST(Mrla, ReadsTokensInPartsAsAtOnce) {
  Bench bench(kMrla, d, L);
  bench.perturb(0.3);
  const Sequence embedding = random_sequence();
  const auto whole = mixed_of(bench, embedding);
  const auto part = [&](const std::vector<Sequence>& all, size_t first, size_t last) {
    std::vector<Sequence> tokens;
    for (const Sequence& site : all) {
      tokens.emplace_back(site.begin() + first, site.begin() + last);
    }
    return tokens;
  };
  std::vector<std::vector<KeptTensor>> kept;
  for (int l = 0; l <= L; ++l) kept.push_back(bench.mixer->kept(l));
  SideBySide decoded(kept, /*batch=*/1, T);
  size_t first = 0;
  for (const size_t tokens : {1, 0, 3, 1}) {
    const size_t last = first + tokens;
    const Sequence ids(embedding.begin() + first, embedding.begin() + last);
    if (tokens > 0) {
      EXPECT_LT(difference(mixed_of(bench, ids, &decoded), part(whole, first, last)), 1e-13);
    }
    first = last;
  }
  // Negative control: without the history the last token reads something else.
  const Sequence last_token(embedding.end() - 1, embedding.end());
  EXPECT_GT(difference(mixed_of(bench, last_token), part(whole, T - 1, T)), 1e-3);
}

TEST(Mrla, SizesItsKernelsByTheWidth) {
  const auto taps = [](int64_t width) {
    return Bench(kMrla, width, 2).at(1, "query_conv").numel();
  };
  EXPECT_EQ(taps(32), 3);
  EXPECT_EQ(taps(64), 3);
  EXPECT_EQ(taps(256), 5);
  EXPECT_EQ(taps(1024), 5);
  EXPECT_EQ(taps(2048), 7);
}

TEST(Mrla, IsLinearWithWeightsHeld) {
  Bench bench(kMrla, d, L);
  bench.perturb(0.3);
  EXPECT_LT(linearity_defect(bench, d, L, true, T), 1e-12);
  EXPECT_GT(linearity_defect(bench, d, L, false, T), 1e-3);
}

TEST(Mrla, TakesNoSettings) {
  EXPECT_NE(refusal_of({{"type", "mrla"}, {"kernel", 3}}).find("takes no settings"),
            std::string::npos);
}

}  // namespace
}  // namespace attnres::mrla_test
