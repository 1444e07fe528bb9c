// Causal attention in tiles against its formula in float64, with gradients.
#include "attnres/ops/causal_attention/causal_attention.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "attnres/support/error.h"
#include "tests/ops/every_target.h"
#include "tests/tolerances.h"

namespace attnres::causal_attention_test {
namespace {

using at::Tensor;
using testing::close;
using Tensors = std::vector<Tensor>;

// With `later` later keys that a query sees too.
Tensor by_formula(const Tensor& q_BTHK, const Tensor& k_BNGK, const Tensor& v_BNGK,
                  int64_t window = 0, int64_t later = 0, const Tensor& sinks_H = {}) {
  const int64_t T = q_BTHK.size(1), N = k_BNGK.size(1), group = q_BTHK.size(2) / k_BNGK.size(2);
  const auto by_head = [&](const Tensor& x) {
    return x.repeat_interleave(group, 2).transpose(1, 2);
  };
  const Tensor scores = q_BTHK.transpose(1, 2).matmul(by_head(k_BNGK).transpose(2, 3)) /
                        std::sqrt(static_cast<double>(q_BTHK.size(3)));
  Tensor seen = at::ones({T, N}, at::kBool).tril(N - T + later);
  if (window > 0) seen = seen.triu(N - T - window + 1);
  const Tensor known = scores.masked_fill(seen.logical_not(), -INFINITY);
  Tensor weights = known.softmax(-1);
  if (sinks_H.defined()) {
    const Tensor exponentials = known.exp();
    weights =
        exponentials / (exponentials.sum(-1, /*keepdim=*/true) + sinks_H.exp().view({1, -1, 1, 1}));
  }
  return weights.matmul(by_head(v_BNGK)).transpose(1, 2);
}

// o and the gradients of q, k and v.
template <class F>
Tensors run(const Tensors& inputs, at::ScalarType dtype, const Tensor& gradient, const F& f) {
  Tensors leaves;
  for (const Tensor& input : inputs) {
    leaves.push_back(input.to(dtype, false, /*copy=*/true).requires_grad_(true));
  }
  Tensors all = {f(leaves[0], leaves[1], leaves[2])};
  const Tensors grads = torch::autograd::grad({all[0]}, leaves, {gradient.to(dtype)});
  all.insert(all.end(), grads.begin(), grads.end());
  return all;
}

auto in_tiles(int64_t window = 0) {
  return [window](const Tensor& q, const Tensor& k, const Tensor& v) {
    return tiled_causal_attention(q, k, v, window);
  };
}

struct Sizes {
  int64_t B, T, H, G, K;
  int64_t earlier = 0;  // keys before the first query's
  int64_t window = 0;
};

class TiledAttention : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override {
    const Tensor x = at::ones({1, 2, 1, 2}, GetParam());
    if (!can_tile_attention(x, x, x)) GTEST_SKIP() << "not on this processor";
  }
  // Numbers that the dtype has.
  static Tensors inputs(const Sizes& s, double scale = 1) {
    const auto numbers = [&](int64_t tokens, int64_t heads) {
      return (scale * at::randn({s.B, tokens, heads, s.K})).to(GetParam()).to(at::kDouble);
    };
    const int64_t N = s.T + s.earlier;
    return {numbers(s.T, s.H), numbers(N, s.G), numbers(N, s.G)};
  }
  static double tolerance() { return GetParam() == at::kFloat ? 1e-5 : 2e-2; }
};

INSTANTIATE_TEST_SUITE_P(Dtypes, TiledAttention, ::testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& info) { return c10::toString(info.param); });

TEST_P(TiledAttention, IsItsFormulaWithItsGradients) {
  for (const Sizes& s :
       {Sizes{2, 1, 2, 1, 2}, Sizes{1, 3, 3, 3, 6}, Sizes{2, 63, 4, 2, 8}, Sizes{1, 64, 2, 2, 64},
        Sizes{1, 65, 4, 1, 10}, Sizes{1, 577, 2, 1, 16}, Sizes{1, 1100, 2, 2, 4},
        Sizes{2, 1, 2, 1, 4, 5}, Sizes{2, 70, 4, 2, 6, 13}, Sizes{1, 65, 2, 1, 4, 640}}) {
    SCOPED_TRACE(fmt::format("T {} K {} after {}", s.T, s.K, s.earlier));
    const Tensors given = inputs(s);
    const Tensor gradient = at::randn(given[0].sizes()).to(GetParam()).to(at::kDouble);
    const auto formula = [](int64_t later) {
      return [later](const Tensor& q, const Tensor& k, const Tensor& v) {
        return by_formula(q, k, v, /*window=*/0, later);
      };
    };
    const Tensors expected = run(given, at::kDouble, gradient, formula(0)),
                  wrong = run(given, at::kDouble, gradient, formula(1));
    testing::on_every_target([&] {
      const Tensors actual = run(given, GetParam(), gradient, in_tiles());
      for (size_t i = 0; i < actual.size(); ++i) {
        EXPECT_EQ(actual[i].scalar_type(), GetParam());
        // The gradients of scores are small differences of numbers near 1.
        EXPECT_TRUE(close(actual[i], expected[i], tolerance(), /*smallest=*/1)) << i;
        if (s.T > 1 && s.T > s.earlier) {  // one key more of many is nothing
          EXPECT_FALSE(close(actual[i], wrong[i], tolerance(), 1)) << i;
        }
      }
    });
  }
}

// Windows shorter and longer than a block of queries and a tile of keys, of one token, and of all.
TEST_P(TiledAttention, SeesTheWindowOnly) {
  for (const Sizes& s :
       {Sizes{2, 70, 4, 2, 6, 0, 1}, Sizes{1, 200, 2, 1, 8, 0, 7}, Sizes{1, 200, 2, 2, 8, 33, 64},
        Sizes{1, 130, 2, 1, 4, 900, 511}, Sizes{1, 1200, 2, 1, 4, 0, 600},
        Sizes{1, 65, 2, 1, 4, 1300, 1001}, Sizes{1, 96, 1, 1, 4, 0, 96}}) {
    SCOPED_TRACE(fmt::format("T {} after {}, window {}", s.T, s.earlier, s.window));
    const Tensors given = inputs(s);
    const Tensor gradient = at::randn(given[0].sizes()).to(GetParam()).to(at::kDouble);
    const auto formula = [](int64_t window) {
      return [window](const Tensor& q, const Tensor& k, const Tensor& v) {
        return by_formula(q, k, v, window);
      };
    };
    const Tensors expected = run(given, at::kDouble, gradient, formula(s.window)),
                  wrong = run(given, at::kDouble, gradient, formula(s.window + 1));
    testing::on_every_target([&] {
      const Tensors actual = run(given, GetParam(), gradient, in_tiles(s.window));
      for (size_t i = 0; i < actual.size(); ++i) {
        EXPECT_TRUE(close(actual[i], expected[i], tolerance(), /*smallest=*/1)) << i;
      }
      // One key more of many is nothing; of all there are none.
      if (s.window <= 7) {
        EXPECT_FALSE(close(actual[0], wrong[0], tolerance(), 1));
      }
    });
  }
}

// Sinks as one more key of which nothing is taken, in tiles and composed.
TEST_P(TiledAttention, LeavesItsShareToSinks) {
  for (const Sizes& s : {Sizes{2, 70, 4, 2, 6, 0, 7}, Sizes{1, 130, 4, 1, 8, 33, 0},
                         Sizes{1, 5, 2, 2, 4}, Sizes{1, 1200, 2, 1, 4, 0, 600}}) {
    SCOPED_TRACE(fmt::format("T {} after {}, window {}", s.T, s.earlier, s.window));
    Tensors given = inputs(s);
    given.push_back((at::arange(s.H, at::kDouble) - 1).to(GetParam()).to(at::kDouble));
    const Tensor gradient = at::randn(given[0].sizes()).to(GetParam()).to(at::kDouble);
    const auto results = [&](at::ScalarType dtype, const auto& attend) {
      Tensors leaves;
      for (const Tensor& input : given) {
        leaves.push_back(input.to(dtype, false, /*copy=*/true).requires_grad_(true));
      }
      Tensors all = {attend(leaves)};
      const Tensors grads = torch::autograd::grad({all[0]}, leaves, {gradient.to(dtype)});
      all.insert(all.end(), grads.begin(), grads.end());
      return all;
    };
    const Tensors expected = results(at::kDouble, [&](const Tensors& in) {
      return by_formula(in[0], in[1], in[2], s.window, /*later=*/0, in[3]);
    });
    const Tensors composed = results(at::kDouble, [&](const Tensors& in) {
      return causal_attention_composed(in[0], in[1], in[2], s.window, in[3]);
    });
    const Tensors without = results(at::kDouble, [&](const Tensors& in) {
      return by_formula(in[0], in[1], in[2], s.window) + 0 * in[3].sum();
    });
    testing::on_every_target([&] {
      const Tensors actual = results(GetParam(), [&](const Tensors& in) {
        return tiled_causal_attention(in[0], in[1], in[2], s.window, in[3]);
      });
      for (size_t i = 0; i < actual.size(); ++i) {
        EXPECT_TRUE(close(actual[i], expected[i], 2 * tolerance(), /*smallest=*/1)) << i;
        EXPECT_TRUE(close(composed[i], expected[i], 1e-12, /*smallest=*/1)) << i;
      }
      EXPECT_FALSE(close(actual[0], without[0], 2 * tolerance(), 1));
    });
  }
  const Tensors given = inputs({1, 5, 2, 2, 4});
  EXPECT_THROW(tiled_causal_attention(given[0], given[1], given[2], 0, at::zeros({3})), Error);
}

TEST_P(TiledAttention, BearsLargeScores) {
  const Tensors given = inputs({1, 130, 2, 1, 8}, 30);
  const Tensor gradient = at::randn(given[0].sizes());
  for (const Tensor& t : run(given, GetParam(), gradient, in_tiles())) {
    EXPECT_TRUE(t.isfinite().all().item<bool>());
  }
  const Tensor o = run(given, GetParam(), gradient, in_tiles())[0];
  EXPECT_TRUE(close(o, by_formula(given[0], given[1], given[2]), 20 * tolerance()));
}

TEST_P(TiledAttention, HasTheSameBitsForAnyNumberOfThreads) {
  const int threads = at::get_num_threads();
  const Tensors given = inputs({2, 200, 4, 2, 16});
  const Tensor gradient = at::randn(given[0].sizes());
  at::set_num_threads(1);
  const Tensors alone = run(given, GetParam(), gradient, in_tiles());
  at::set_num_threads(3);
  const Tensors together = run(given, GetParam(), gradient, in_tiles());
  at::set_num_threads(threads);
  for (size_t i = 0; i < alone.size(); ++i) EXPECT_TRUE(at::equal(alone[i], together[i])) << i;
}

TEST_P(TiledAttention, ReadsHeadsThatLieBesideOthers) {
  const Tensors given = inputs({1, 70, 2, 2, 8});
  const auto apart = [](const Tensor& x) { return x.transpose(1, 2).contiguous().transpose(1, 2); };
  const Tensor dtype_q = given[0].to(GetParam());
  const Tensor o = tiled_causal_attention(apart(dtype_q), apart(given[1].to(GetParam())),
                                          given[2].to(GetParam()));
  EXPECT_TRUE(close(o, by_formula(given[0], given[1], given[2]), tolerance()));
}

TEST(TiledAttentionOfOthers, RefusesWhatItCannotCompute) {
  const auto message = [](const Tensor& q, const Tensor& k) -> std::string {
    try {
      tiled_causal_attention(q, k, k);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  const Tensor q = at::ones({1, 5, 4, 8});
  EXPECT_THAT(message(q, at::ones({1, 4, 2, 8})),
              ::testing::HasSubstr("[1, 5, 4, 8], [1, 4, 2, 8]"));
  EXPECT_NE(message(q, at::ones({1, 5, 3, 8})), "");
  EXPECT_NE(message(q, at::ones({1, 5, 2, 8}, at::kDouble)), "");
  EXPECT_NE(message(q, at::ones({1, 5, 2, 6})), "");
  EXPECT_NE(message(q, at::ones({1, 5, 2, 8}, at::TensorOptions(at::kMeta))), "");
  EXPECT_EQ(message(q.to(at::kDouble), at::ones({1, 5, 2, 8}, at::kDouble)), "");
}

// What no kernel computes is composed of tensor operations.
TEST(TiledAttentionOfOthers, IsItsFormulaWithItsGradients) {
  for (const Sizes& s : {Sizes{2, 5, 4, 2, 8}, Sizes{1, 7, 2, 2, 3, 6}, Sizes{1, 40, 4, 1, 5, 9, 4},
                         Sizes{1, 1, 3, 1, 2, 11, 3}}) {
    const int64_t N = s.T + s.earlier;
    const Tensors given = {at::randn({s.B, s.T, s.H, s.K}, at::kDouble),
                           at::randn({s.B, N, s.G, s.K}, at::kDouble),
                           at::randn({s.B, N, s.G, s.K}, at::kDouble)};
    const Tensor gradient = at::randn_like(given[0]);
    const auto formula = [&](int64_t later) {
      return [&s, later](const Tensor& q, const Tensor& k, const Tensor& v) {
        return by_formula(q, k, v, s.window, later);
      };
    };
    const Tensors actual = run(given, at::kDouble, gradient, in_tiles(s.window)),
                  expected = run(given, at::kDouble, gradient, formula(0));
    for (size_t i = 0; i < actual.size(); ++i) {
      EXPECT_TRUE(close(actual[i], expected[i])) << i << " of " << s.T;
    }
    if (s.T > 1) {
      EXPECT_FALSE(close(actual[0], run(given, at::kDouble, gradient, formula(1))[0])) << s.T;
    }
  }
}

}  // namespace
}  // namespace attnres::causal_attention_test
