#include <cstdint>

#include "attnres/ops/exported_kernel.h"
#include "attnres/ops/head_maps/kernel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attnres/ops/head_maps/kernel_simd.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "attnres/ops/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace attnres::kernel {
namespace HWY_NAMESPACE {

// As many rows as sums fit into registers beside each other: x is loaded once for them.
template <int R, class Storage>
HWY_INLINE void dot_rows(const HeadMap<Storage>& op, int64_t n) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> one;
  const Storage* rows = op.weight + n * op.K;
  hn::Vec<decltype(d)> sum[R];
  for (int r = 0; r < R; ++r) sum[r] = hn::Zero(d);
  for_each_vector(d, op.K, [&](size_t k, auto part) HWY_ATTR {
    const auto x = load(d, op.x + k, part);
    for (int r = 0; r < R; ++r) {
      sum[r] = hn::MulAdd(load(d, rows + r * op.K + k, part), x, sum[r]);
    }
  });
  for (int r = 0; r < R; ++r) {
    store(one, hn::Set(one, hn::GetLane(hn::SumOfLanes(d, sum[r]))), op.y + n + r);
  }
}

template <class Storage>
void map_of(const HeadMap<Storage>& op, int64_t first, int64_t last) {
  constexpr int kRows = 4;
  int64_t n = first;
  for (; n + kRows <= last; n += kRows) dot_rows<kRows>(op, n);
  for (; n < last; ++n) dot_rows<1>(op, n);
}

// Columns k to k + U vectors, down all rows.
template <int U, class Storage, class P>
HWY_INLINE void add_rows(const HeadMap<Storage>& op, size_t k, P part) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> one;
  const size_t lanes = hn::Lanes(d);
  hn::Vec<decltype(d)> sum[U];
  for (int u = 0; u < U; ++u) sum[u] = hn::Zero(d);
  for (int64_t n = 0; n < op.N; ++n) {
    const auto x = hn::Set(d, hn::GetLane(load(one, op.x + n)));
    const Storage* row = op.weight + n * op.K + k;
    for (int u = 0; u < U; ++u) sum[u] = hn::MulAdd(load(d, row + u * lanes, part), x, sum[u]);
  }
  for (int u = 0; u < U; ++u) store(d, sum[u], op.y + k + u * lanes, part);
}

template <class Storage>
void transposed_map_of(const HeadMap<Storage>& op, int64_t first, int64_t last) {
  const hn::ScalableTag<float> d;
  for_each_vectors<8>(d, last - first, [&]<int U>(size_t k, auto part) HWY_ATTR {
    add_rows<U>(op, first + k, part);
  });
}

ATTNRES_COMPILE_SINGLE(head_map, HeadMap, map_of)
ATTNRES_COMPILE_SINGLE(transposed_head_map, HeadMap, transposed_map_of)

}  // namespace HWY_NAMESPACE
}  // namespace attnres::kernel
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnres::kernel {

ATTNRES_EXPORT_SINGLE(head_map, HeadMap)
ATTNRES_EXPORT_SINGLE(transposed_head_map, HeadMap)

}  // namespace attnres::kernel
#endif  // HWY_ONCE
