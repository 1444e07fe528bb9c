// The dot products that scores are made of, for one instruction set. Both phases take them here, so
// that a source's score has the same bits whichever phase reads it.
#if defined(ATTNRES_DOTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNRES_DOTS_INL_H_
#undef ATTNRES_DOTS_INL_H_
#else
#define ATTNRES_DOTS_INL_H_
#endif

#include <array>
#include <cstddef>
#include <cstdint>

#include "attnres/ops/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnres::kernel {
namespace HWY_NAMESPACE {

// Sites whose sums are held in registers together. More are served in turns.
inline constexpr int64_t kSitesATurn = 4;

// Additions of a sum that depend on one another would take a vector every four cycles: a sum has
// as many parts as there are registers for, of every kChains-th vector each.
inline constexpr int kChains = HWY_MAX_BYTES >= 64 ? 4 : 2;

// sums_q = v . a_q, and squares = v . v if wanted. A sum does not depend on how many are taken.
template <int Q, bool kSquares, class Storage, class A, class T>
HWY_INLINE void dots(const Storage* v, const std::array<const A*, kSitesATurn>& a, size_t width,
                     T* const* sums, T* squares) {
  const hn::ScalableTag<T> d;
  const size_t lanes = hn::Lanes(d);
  hn::Vec<decltype(d)> total[Q][kChains], square[kChains];
  for (int u = 0; u < kChains; ++u) {
    square[u] = hn::Zero(d);
    for (int q = 0; q < Q; ++q) total[q][u] = hn::Zero(d);
  }
  for_each_vectors<kChains>(d, width, [&]<int kVectors>(size_t k, auto part) HWY_ATTR {
    for (int u = 0; u < kVectors; ++u) {
      const auto x = load(d, v + k + u * lanes, part);
      for (int q = 0; q < Q; ++q) {
        total[q][u] = hn::MulAdd(x, load(d, a[q] + k + u * lanes, part), total[q][u]);
      }
      if (kSquares) square[u] = hn::MulAdd(x, x, square[u]);
    }
  });
  const auto sum_of = [&](auto* chains) HWY_ATTR {
    for (int u = kChains / 2; u > 0; u /= 2) {
      for (int i = 0; i < u; ++i) chains[i] = hn::Add(chains[i], chains[i + u]);
    }
    return hn::GetLane(hn::SumOfLanes(d, chains[0]));
  };
  for (int q = 0; q < Q; ++q) *sums[q] = sum_of(total[q]);
  if (kSquares) *squares = sum_of(square);
}

}  // namespace HWY_NAMESPACE
}  // namespace attnres::kernel
HWY_AFTER_NAMESPACE();

#endif  // per target
