#include <algorithm>
#include <cstdint>
#include <vector>

#include "attnres/ops/exported_kernel.h"
#include "attnres/ops/paged_attention/kernel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attnres/ops/paged_attention/kernel_simd.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "attnres/ops/simd-inl.h"
#include "hwy/cache_control.h"
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace attnres::kernel {
namespace HWY_NAMESPACE {

// Tokens at a time: their keys and values stay in a core's cache.
constexpr int64_t kTokens = 32;

// The rows of a call's next tokens.
template <class Storage>
struct TokenRows {
  const Storage* keys[kTokens];
  const Storage* values[kTokens];
  int64_t count = 0;

  TokenRows(const PagedAttention<Storage>& op, int64_t first, int64_t last)
      : count(std::min(kTokens, last - first)) {
    int64_t page = first / op.page_tokens, in_page = first % op.page_tokens;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = op.pages[page] * op.page_tokens + in_page;
      keys[i] = op.keys + row * op.G * op.K;
      values[i] = op.values + row * op.value_row;
      if (++in_page == op.page_tokens) {
        in_page = 0;
        ++page;
      }
    }
  }
};

// What is read next comes while one computes.
HWY_INLINE void prefetch(const void* from, size_t bytes) {
  for (size_t at = 0; at < bytes; at += 64) hwy::Prefetch(static_cast<const char*>(from) + at);
}

template <class D, class Storage>
HWY_INLINE hn::Vec<D> dot(D d, const Storage* a, const Storage* b, int64_t width) {
  constexpr int kSums = 4;  // one would wait for itself
  const size_t lanes = hn::Lanes(d);
  hn::Vec<D> sum[kSums];
  for (auto& part_sum : sum) part_sum = hn::Zero(d);
  for_each_vectors<kSums>(d, width, [&]<int U>(size_t k, auto part) HWY_ATTR {
    for (int u = 0; u < U; ++u) {
      const size_t at = k + u * lanes;
      sum[u] = hn::MulAdd(load(d, a + at, part), load(d, b + at, part), sum[u]);
    }
  });
  return hn::SumOfLanes(d, hn::Add(hn::Add(sum[0], sum[1]), hn::Add(sum[2], sum[3])));
}

// exp(s - max) in the place of s; up to a vector of numbers is written. Returns their sum.
HWY_INLINE float exponentials(float* scores, int64_t count, float max) {
  const hn::CappedTag<float, 16> d;
  const int64_t lanes = hn::Lanes(d);
  auto sum = hn::Zero(d);
  for (int64_t i = count; i % lanes != 0; ++i) scores[i] = -1e30F;
  for (int64_t i = 0; i < count; i += lanes) {
    const auto p = hn::Exp(d, hn::Sub(hn::LoadU(d, scores + i), hn::Set(d, max)));
    sum = hn::Add(sum, p);
    hn::StoreU(p, d, scores + i);
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

// sums = rescale sums + sum_i weights[i] v_i, channels k to k + U vectors; `values` are the rows'
// numbers `at` and following.
template <int U, class D, class Storage, class P>
HWY_INLINE void add_values(D d, const TokenRows<Storage>& rows, int64_t at, const float* weights,
                           float rescale, float* sums, P part) {
  hn::Vec<D> sum[U];
  const size_t lanes = hn::Lanes(d);
  for (int u = 0; u < U; ++u) {
    sum[u] = hn::Mul(hn::Set(d, rescale), load(d, sums + u * lanes, part));
  }
  for (int64_t i = 0; i < rows.count; ++i) {
    const auto weight = hn::Set(d, weights[i]);
    for (int u = 0; u < U; ++u) {
      sum[u] = hn::MulAdd(weight, load(d, rows.values[i] + at + u * lanes, part), sum[u]);
    }
  }
  for (int u = 0; u < U; ++u) store(d, sum[u], sums + u * lanes, part);
}

template <class Storage>
void attend(const PagedAttention<Storage>& op, int64_t first, int64_t last) {
  const hn::ScalableTag<float> d;
  const int64_t group = op.H / op.G;
  std::fill_n(op.max, op.H, -1e30F);
  std::fill_n(op.sum, op.H, 0.0F);
  std::fill_n(op.sums, op.H * op.V, 0.0F);
  std::vector<float> scores(op.H * kTokens);
  for (int64_t t = first; t < last; t += kTokens) {
    const TokenRows<Storage> rows(op, t, last);
    for (int64_t i = 0; i < rows.count; ++i) {
      prefetch(rows.values[i], op.G * op.V * sizeof(Storage));
      for (int64_t h = 0; h < op.H; ++h) {
        const Storage* key = rows.keys[i] + h / group * op.K;
        scores[h * kTokens + i] = op.scale * hn::GetLane(dot(d, op.queries + h * op.K, key, op.K));
      }
    }
    for (int64_t h = 0; h < op.H; ++h) {
      float* weights = scores.data() + h * kTokens;
      const float most = std::max(op.max[h], *std::max_element(weights, weights + rows.count));
      float rescale[16] = {op.max[h]};
      exponentials(rescale, 1, most);
      op.sum[h] = rescale[0] * op.sum[h] + exponentials(weights, rows.count, most);
      op.max[h] = most;
      for_each_vectors<4>(d, op.V, [&]<int U>(size_t v, auto part) HWY_ATTR {
        add_values<U>(d, rows, h / group * op.V + v, weights, rescale[0], op.sums + h * op.V + v,
                      part);
      });
    }
  }
}

ATTNRES_COMPILE_SINGLE(paged_attention, PagedAttention, attend)

}  // namespace HWY_NAMESPACE
}  // namespace attnres::kernel
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnres::kernel {

ATTNRES_EXPORT_SINGLE(paged_attention, PagedAttention)

}  // namespace attnres::kernel
#endif  // HWY_ONCE
