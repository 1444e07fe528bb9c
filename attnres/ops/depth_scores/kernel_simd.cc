#include <algorithm>
#include <cmath>
#include <cstdint>

#include "attnres/ops/depth_scores/kernel.h"
#include "attnres/ops/exported_kernel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attnres/ops/depth_scores/kernel_simd.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "attnres/ops/simd-inl.h"
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace attnres::kernel {
namespace HWY_NAMESPACE {

template <class Storage>
HWY_INLINE Compute<Storage> inverse_rms(const Storage* v, int64_t width, double eps) {
  using T = Compute<Storage>;
  const hn::ScalableTag<T> d;
  auto square = hn::Zero(d);
  for_each_vector(d, width, [&](size_t k, auto part) HWY_ATTR {
    const auto x = load(d, v + k, part);
    square = hn::MulAdd(x, x, square);
  });
  const T mean = hn::GetLane(hn::SumOfLanes(d, square)) / static_cast<T>(width);
  return T{1} / std::sqrt(mean + static_cast<T>(eps));
}

// f(x) and f'(x), for the kernel that factorises or for none.
template <class V>
struct Feature {
  V value, slope;
};

template <bool kFactorised, class D, class V = hn::Vec<D>>
HWY_INLINE Feature<V> feature(D d, V x) {
  const V one = hn::Set(d, 1);
  if constexpr (!kFactorised) return {x, one};
  const V zero = hn::Zero(d), below = hn::Exp(d, hn::Min(x, zero));
  const auto is_nan = hn::IsNaN(x);  // of which Exp would make a number
  return {hn::IfThenElse(is_nan, x, hn::Add(hn::Max(x, zero), below)),
          hn::IfThenElse(is_nan, x, hn::IfThenElse(hn::Gt(x, zero), one, below))};
}

template <bool kFactorised, class Storage>
void scores_of_tokens(const DepthScores<Storage>& op, int64_t first, int64_t last) {
  using T = Compute<Storage>;
  const hn::ScalableTag<T> d;
  const int64_t N = op.sizes.sources, tokens = op.sizes.tokens, D = op.sizes.width;
  const int64_t H = op.sizes.heads, G = D / H;
  for (int64_t t = first; t < last; ++t) {
    const T* query = op.query_D + t * op.query_stride;
    for (int64_t n = 0; n < N; ++n) {
      const Storage* v = op.sources_TD[n] + t * D;
      T rho = 1;
      if (op.normalised) rho = op.inverse_rms_NT[n * tokens + t] = inverse_rms(v, D, op.eps);
      for (int64_t h = 0; h < H; ++h) {
        auto sum = hn::Zero(d);
        for_each_vector(d, G, [&](size_t k, auto part) HWY_ATTR {
          const size_t c = h * G + k;
          auto key = hn::Mul(load(d, v + c, part), hn::Set(d, rho));
          if (op.key_gain_D != nullptr) key = hn::Mul(key, load(d, op.key_gain_D + c, part));
          sum = hn::MulAdd(load(d, query + c, part), feature<kFactorised>(d, key).value, sum);
        });
        op.scores_NTH[(n * tokens + t) * H + h] = hn::GetLane(hn::SumOfLanes(d, sum));
      }
    }
  }
}

template <class Storage>
void scores_rows(const DepthScores<Storage>& op, int64_t first, int64_t last) {
  op.factorised ? scores_of_tokens<true>(op, first, last)
                : scores_of_tokens<false>(op, first, last);
}

// The backward of one source and token: the gradients of the query and the gain are added to.
template <bool kFactorised, class Storage>
HWY_INLINE void scores_backward_of(const DepthScoresBackward<Storage>& op, int64_t n, int64_t t,
                                   Compute<Storage>* grad_query, Compute<Storage>* grad_gain) {
  using T = Compute<Storage>;
  const hn::ScalableTag<T> d;
  const DepthScores<Storage>& of = op.forward;
  const int64_t D = of.sizes.width, H = of.sizes.heads, G = D / H, row = n * of.sizes.tokens + t;
  const Storage* v = of.sources_TD[n] + t * D;
  const T* query = of.query_D + t * of.query_stride;
  T* grad = op.grad_sources_TD[n] == nullptr ? nullptr : op.grad_sources_TD[n] + t * D;
  const bool accumulate = op.accumulate_N[n];
  const auto rho = hn::Set(d, of.normalised ? of.inverse_rms_NT[row] : T{1});
  auto along = hn::Zero(d);  // n . (g * dk)
  for (int64_t h = 0; h < H; ++h) {
    const auto grad_score = hn::Set(d, op.grad_scores_NTH[row * H + h]);
    for_each_vector(d, G, [&](size_t k, auto part) HWY_ATTR {
      const size_t c = h * G + k;
      const auto normalised = hn::Mul(load(d, v + c, part), rho);
      auto key = normalised;
      if (of.key_gain_D != nullptr) key = hn::Mul(key, load(d, of.key_gain_D + c, part));
      const auto of_key = feature<kFactorised>(d, key);
      store(d, hn::MulAdd(grad_score, of_key.value, load(d, grad_query + c, part)), grad_query + c,
            part);
      auto back = hn::Mul(hn::Mul(grad_score, load(d, query + c, part)), of_key.slope);
      if (of.key_gain_D != nullptr) {
        store(d, hn::MulAdd(back, normalised, load(d, grad_gain + c, part)), grad_gain + c, part);
        back = hn::Mul(back, load(d, of.key_gain_D + c, part));
      }
      if (grad == nullptr) return;
      along = hn::MulAdd(normalised, back, along);
      const auto there = accumulate ? load(d, grad + c, part) : hn::Zero(d);
      store(d, hn::MulAdd(rho, back, there), grad + c, part);
    });
  }
  if (grad == nullptr || !of.normalised) return;
  const T mean = hn::GetLane(hn::SumOfLanes(d, along)) / static_cast<T>(D);
  const auto share = hn::Mul(hn::Mul(rho, rho), hn::Set(d, mean));
  for_each_vector(d, D, [&](size_t k, auto part) HWY_ATTR {
    store(d, hn::NegMulAdd(share, load(d, v + k, part), load(d, grad + k, part)), grad + k, part);
  });
}

template <class Storage>
void scores_backward_rows(const DepthScoresBackward<Storage>& op, int64_t first, int64_t last,
                          Compute<Storage>* sums) {
  using T = Compute<Storage>;
  const int64_t D = op.forward.sizes.width;
  for (int64_t t = first; t < last; ++t) {
    T* grad_query = sums;
    if (op.grad_query_TD != nullptr) {
      grad_query = op.grad_query_TD + t * D;
      std::fill_n(grad_query, D, T{0});
    }
    for (int64_t n = 0; n < op.forward.sizes.sources; ++n) {
      op.forward.factorised ? scores_backward_of<true>(op, n, t, grad_query, sums + D)
                            : scores_backward_of<false>(op, n, t, grad_query, sums + D);
    }
  }
}

template <class Storage>
void sum_rows(const WeightedSum<Storage>& op, int64_t first, int64_t last) {
  const hn::ScalableTag<Compute<Storage>> d;
  const size_t lanes = hn::Lanes(d);
  const int64_t N = op.sizes.sources, tokens = op.sizes.tokens, D = op.sizes.width;
  const int64_t H = op.sizes.heads, G = D / H;
  for (int64_t t = first; t < last; ++t) {
    for (int64_t h = 0; h < H; ++h) {
      for_each_vectors<4>(d, G, [&]<int U>(size_t k, auto part) HWY_ATTR {
        const size_t c = t * D + h * G + k;
        hn::Vec<decltype(d)> sum[U];
        for (int u = 0; u < U; ++u) sum[u] = hn::Zero(d);
        for (int64_t n = 0; n < N; ++n) {
          const auto weight = hn::Set(d, op.weights_NTH[(n * tokens + t) * H + h]);
          const Storage* v = op.sources_TD[n] + c;
          for (int u = 0; u < U; ++u) {
            sum[u] = hn::MulAdd(weight, load(d, v + u * lanes, part), sum[u]);
          }
        }
        for (int u = 0; u < U; ++u) store(d, sum[u], op.sum_TD + c + u * lanes, part);
      });
    }
  }
}

template <class Storage>
void sum_backward_rows(const WeightedSumBackward<Storage>& op, int64_t first, int64_t last) {
  using T = Compute<Storage>;
  const hn::ScalableTag<T> d;
  const SourceSizes& sizes = op.forward.sizes;
  const int64_t N = sizes.sources, tokens = sizes.tokens, D = sizes.width;
  const int64_t H = sizes.heads, G = D / H;
  for (int64_t t = first; t < last; ++t) {
    for (int64_t n = 0; n < N; ++n) {
      T* grad = op.grad_sources_TD[n];
      const bool accumulate = op.accumulate_N[n];
      for (int64_t h = 0; h < H; ++h) {
        const int64_t score = (n * tokens + t) * H + h;
        const auto weight = hn::Set(d, op.forward.weights_NTH[score]);
        auto along = hn::Zero(d);
        for_each_vector(d, G, [&](size_t k, auto part) HWY_ATTR {
          const size_t c = t * D + h * G + k;
          const auto grad_sum = load(d, op.grad_sum_TD + c, part);
          along = hn::MulAdd(grad_sum, load(d, op.forward.sources_TD[n] + c, part), along);
          if (grad == nullptr) return;
          const auto there = accumulate ? load(d, grad + c, part) : hn::Zero(d);
          store(d, hn::MulAdd(weight, grad_sum, there), grad + c, part);
        });
        if (op.grad_weights_NTH != nullptr) {
          op.grad_weights_NTH[score] = hn::GetLane(hn::SumOfLanes(d, along));
        }
      }
    }
  }
}

ATTNRES_COMPILE(depth_scores, DepthScores, scores_rows)
ATTNRES_COMPILE_WITH_SUMS(depth_scores_backward, DepthScoresBackward, scores_backward_rows)
ATTNRES_COMPILE(weighted_sum, WeightedSum, sum_rows)
ATTNRES_COMPILE(weighted_sum_backward, WeightedSumBackward, sum_backward_rows)

}  // namespace HWY_NAMESPACE
}  // namespace attnres::kernel
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnres::kernel {

ATTNRES_EXPORT(depth_scores, DepthScores)
ATTNRES_EXPORT_WITH_SUMS(depth_scores_backward, DepthScoresBackward)
ATTNRES_EXPORT(weighted_sum, WeightedSum)
ATTNRES_EXPORT(weighted_sum_backward, WeightedSumBackward)

}  // namespace attnres::kernel
#endif  // HWY_ONCE
