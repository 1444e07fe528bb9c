#include "attnres/ops/paged_attention/paged_attention.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "attnres/support/error.h"
#include "tests/ops/every_target.h"

namespace attnres::testing::paged_attention_test {
namespace {

using at::Tensor;
using ::testing::HasSubstr;

constexpr int64_t kPageTokens = 8;

at::Generator generator(uint64_t seed) {
  return at::detail::createCPUGenerator(seed);
}

// Sequences whose pages lie in any order.
struct Problem {
  Tensor q, keys, values;
  std::vector<std::vector<int64_t>> pages;
  std::vector<int64_t> lengths;
  int64_t window = 0;

  Problem(const std::vector<int64_t>& of_sequences, int64_t H, int64_t G, int64_t K, int64_t V,
          at::ScalarType dtype = at::kFloat)
      : lengths(of_sequences) {
    int64_t count = 0;
    for (const int64_t length : lengths) count += (length + kPageTokens - 1) / kPageTokens;
    std::vector<int64_t> free(count + 2);
    std::iota(free.begin(), free.end(), 0);
    for (size_t i = free.size(); i > 1; --i) std::swap(free[i - 1], free[i * 7 % i]);
    std::reverse(free.begin(), free.end());
    for (const int64_t length : lengths) {
      std::vector<int64_t>& own = pages.emplace_back();
      for (int64_t t = 0; t < length; t += kPageTokens) {
        own.push_back(free.back());
        free.pop_back();
      }
    }
    auto random = generator(1);
    const int64_t rows = (count + 2) * kPageTokens;
    q = at::randn({std::ssize(lengths), H, K}, random, at::kFloat).mul(2).to(dtype);
    keys = at::randn({rows, G, K}, random, at::kFloat).to(dtype);
    values = at::randn({rows, G, V}, random, at::kFloat).to(dtype);
  }

  std::vector<SeenTokens> seen() const {
    std::vector<SeenTokens> seen;
    for (size_t i = 0; i < lengths.size(); ++i) {
      seen.push_back({pages[i].data(), first(i), lengths[i]});
    }
    return seen;
  }

  // The first token that query i sees.
  int64_t first(size_t i) const {
    return window == 0 ? 0 : std::max<int64_t>(0, lengths[i] - window);
  }

  Tensor compute() const { return paged_attention(q, keys, values, seen(), kPageTokens); }

  // In double, token by token; query i sees `more` tokens more of its pages.
  Tensor expected(int64_t more = 0, const Tensor& sinks_H = {}) const {
    const int64_t H = q.size(1), G = keys.size(1);
    std::vector<Tensor> outputs;
    for (size_t i = 0; i < lengths.size(); ++i) {
      std::vector<int64_t> rows;
      for (int64_t t = first(i); t < lengths[i] + more; ++t) {
        rows.push_back(pages[i][t / kPageTokens] * kPageTokens + t % kPageTokens);
      }
      const Tensor at_rows = at::tensor(rows, at::kLong);
      const auto by_head = [&](const Tensor& all) {
        return all.index_select(0, at_rows).to(at::kDouble).repeat_interleave(H / G, 1);
      };
      const Tensor scores = (by_head(keys) * q[static_cast<int64_t>(i)].to(at::kDouble)).sum(-1) /
                            std::sqrt(static_cast<double>(q.size(2)));  // [N, H]
      Tensor weights = scores.softmax(0);
      if (sinks_H.defined()) {
        weights = weights / (1 + (sinks_H.to(at::kDouble) - scores.logsumexp(0)).exp());
      }
      outputs.push_back((weights.unsqueeze(-1) * by_head(values)).sum(0));
    }
    return at::stack(outputs);
  }
};

double largest(const Tensor& difference) {
  return difference.abs().max().item<double>();
}

TEST(PagedAttention, IsAttentionOverTheTokensThatAQuerySees) {
  on_every_target([] {
    for (const auto& [H, G, K, V] : std::vector<std::array<int64_t, 4>>{
             {1, 1, 8, 8}, {4, 2, 64, 64}, {6, 1, 20, 36}, {3, 3, 128, 100}}) {
      const Problem problem({1, 7, 8, 33, 300, 521}, H, G, K, V);
      const Tensor o = problem.compute();
      EXPECT_EQ(o.sizes(), at::IntArrayRef({6, H, V}));
      EXPECT_LT(largest(o - problem.expected()), 2e-5) << H << " " << G << " " << K << " " << V;
    }
  });
  // A token more, or the values of another sequence, would not pass.
  const Problem problem({1, 7, 33}, 4, 2, 64, 64);
  EXPECT_GT(largest(problem.compute() - problem.expected(1)), 0.05);
  EXPECT_GT(largest(problem.compute() - problem.expected().roll(1, 0)), 0.05);
}

// A sink takes part of what a head gives: e^z of e^z and the sum over the keys' e^s.
TEST(PagedAttention, LeavesItsShareToSinks) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const Problem problem({1, 7, 300, 700}, 4, 2, 64, 64, dtype);
    const Tensor sinks = at::tensor({-3.0, 0.5, 4.0, 30.0});
    const auto attend = [&](const Tensor& z) {
      return paged_attention(problem.q, problem.keys, problem.values, problem.seen(), kPageTokens,
                             z);
    };
    on_every_target([&] {
      EXPECT_LT(largest(attend(sinks) - problem.expected(0, sinks)),
                dtype == at::kFloat ? 2e-5 : 0.02);
    });
    EXPECT_GT(largest(attend(sinks) - problem.expected()), 0.05);
    EXPECT_TRUE(attend(at::full({4}, -1e30)).equal(problem.compute()));
    EXPECT_THROW(attend(at::zeros({3})), Error);
  }
}

// Windows of one token, within a page, over pages, and over parts that threads share.
TEST(PagedAttention, ReadsTheWindowOnly) {
  Problem problem({1, 7, 8, 33, 300, 700}, 4, 2, 64, 64);
  for (const int64_t window : {1, 5, 8, 30, 256, 600, 1000}) {
    problem.window = window;
    const Tensor o = problem.compute();
    EXPECT_LT(largest(o - problem.expected()), 2e-5) << window;
    problem.window = window + 1;
    if (window < 700) {
      EXPECT_GT(largest(o - problem.expected()), 1e-3) << window;
    }
  }
}

TEST(PagedAttention, KeepsBfloat16) {
  const Problem problem({5, 300}, 4, 2, 64, 64, at::kBFloat16);
  const Tensor o = problem.compute();
  EXPECT_EQ(o.scalar_type(), at::kBFloat16);
  EXPECT_LT(largest(o - problem.expected()), 0x1p-8 * largest(problem.expected()));
}

TEST(PagedAttention, OfAQueryDoesNotDependOnTheOthers) {
  const Problem all({600, 5, 300}, 4, 2, 64, 64);
  const Tensor o = all.compute();
  for (size_t i = 0; i < 3; ++i) {
    Problem one = all;
    one.q = all.q.narrow(0, static_cast<int64_t>(i), 1);
    one.lengths = {all.lengths[i]};
    one.pages = {all.pages[i]};
    EXPECT_TRUE(at::equal(one.compute()[0], o[static_cast<int64_t>(i)]));
  }
}

TEST(PagedAttention, IsComposedOfTensorOperationsElsewhere) {
  for (const int64_t window : {0, 30}) {
    Problem problem({1, 7, 33, 300}, 4, 2, 16, 24);
    problem.window = window;
    const Tensor composed = paged_attention_composed(problem.q, problem.keys, problem.values, 0.25,
                                                     problem.seen(), kPageTokens, {});
    EXPECT_LT(largest(composed - problem.compute()), 2e-5);
    EXPECT_GT(largest(composed - problem.expected().roll(1, 0)), 0.05);
  }
  const Problem doubles({5, 33}, 4, 2, 16, 16, at::kDouble);
  EXPECT_LT(largest(doubles.compute() - doubles.expected()), 1e-12);
}

TEST(PagedAttention, TakesLargeScores) {
  Problem problem({40, 300}, 2, 1, 16, 16);
  problem.q.mul_(300);
  EXPECT_LT(largest(problem.compute() - problem.expected()), 1e-3);
}

TEST(PagedAttention, OfLatentsHasTheirBeginningAsValues) {
  on_every_target([] {
    Problem problem({1, 33, 300}, 6, 1, 52, 52);
    problem.values = problem.keys;
    const Tensor expected = problem.expected().narrow(2, 0, 36);
    const auto over_latents = [&](double scale) {
      return paged_latent_attention(problem.q, problem.keys.squeeze(1), 36, scale, problem.seen(),
                                    kPageTokens);
    };
    EXPECT_LT(largest(over_latents(1 / std::sqrt(52.0)) - expected), 2e-5);
    EXPECT_GT(largest(over_latents(1 / std::sqrt(36.0)) - expected), 0.01);
  });
  const Problem problem({5}, 2, 1, 16, 16);
  EXPECT_THROW(paged_latent_attention(problem.q, problem.keys.squeeze(1), 17, 1, problem.seen(),
                                      kPageTokens),
               Error);
}

TEST(PagedAttention, RefusesShapesThatDoNotFit) {
  const Problem problem({5, 6}, 4, 2, 16, 16);
  const auto message = [&](const Tensor& q, const Tensor& keys, const Tensor& values) {
    try {
      paged_attention(q, keys, values, problem.seen(), kPageTokens);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("nothing");
  };
  const auto &q = problem.q, &k = problem.keys, &v = problem.values;
  for (const auto& refused : {message(q.narrow(1, 0, 3), k, v), message(q.narrow(2, 0, 8), k, v),
                              message(q.narrow(0, 0, 1), k, v), message(q, k.narrow(1, 0, 1), v),
                              message(q, k, v.to(at::kDouble)), message(q, k.transpose(0, 1), v)}) {
    EXPECT_THAT(refused, HasSubstr("paged attention: expected q [T, H, K]"));
  }
  EXPECT_THAT(message(q, k, v.to(at::kMeta)), HasSubstr("one device, but are on cpu, cpu, meta"));
}

}  // namespace
}  // namespace attnres::testing::paged_attention_test
