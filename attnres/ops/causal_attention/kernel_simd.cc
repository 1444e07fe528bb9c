#include <cstdint>

#include "attnres/ops/causal_attention/kernel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attnres/ops/causal_attention/kernel_simd.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "attnres/ops/simd-inl.h"
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace attnres::kernel {
namespace HWY_NAMESPACE {

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

// Columns of a row whose queries see the key.
HWY_INLINE hn::Mask<D> seen(const AttentionTile& tile, int64_t row, int64_t column) {
  const D d;
  const auto later = static_cast<float>(tile.first_key + row - tile.first_query - column);
  const V queries = hn::Iota(d, 0.0f);
  const auto causal = hn::Ge(queries, hn::Set(d, later));
  if (tile.window == 0) return causal;
  const V end = hn::Set(d, later + static_cast<float>(tile.window));
  return hn::And(causal, hn::Lt(queries, end));
}

// Rows that every query of the tile sees.
struct SeenRows {
  int64_t first, last;

  bool has(int64_t row) const { return first <= row && row < last; }
};
HWY_INLINE SeenRows rows_seen_by_all(const AttentionTile& tile) {
  const int64_t of_first_query = tile.first_query - tile.first_key;
  const int64_t last = std::clamp<int64_t>(of_first_query + 1, 0, tile.num_keys);
  if (tile.window == 0) return {0, last};
  const int64_t of_last_query = of_first_query + kQueries - 1;
  return {std::clamp<int64_t>(of_last_query - tile.window + 1, 0, last), last};
}

// Two rows of numbers that were rounded, as pairs: numbers of `a` in the lower halves.
HWY_INLINE void store_pairs(V a, V b, BFloat16* to) {
  const hn::RebindToUnsigned<D> d32;
  const auto upper = hn::Set(d32, 0xffff0000u);
  const auto low = hn::ShiftRight<16>(hn::BitCast(d32, a));
  hn::StoreU(hn::Or(low, hn::And(hn::BitCast(d32, b), upper)), d32,
             reinterpret_cast<uint32_t*>(to));
}

// To the nearest bfloat16, ties to even, as float32. Of finite numbers.
HWY_INLINE V rounded(V v) {
  const D d;
  const hn::RebindToUnsigned<D> d32;
  const auto bits = hn::BitCast(d32, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1));
  const auto up = hn::Add(bits, hn::Add(odd, hn::Set(d32, 0x7fff)));
  return hn::BitCast(d, hn::And(up, hn::Set(d32, 0xffff0000u)));
}

// Calls f(row, column) with each row that `rows` has, and pairs(row, column, a, b) with the values
// of two rows; of the last alone, if it is, b is zero.
template <class F, class Pairs>
HWY_INLINE void by_pairs(int64_t num_rows, const F& f, const Pairs& pairs) {
  const D d;
  for (int64_t row = 0; row < num_rows; row += 2) {
    for (int64_t c = 0; c < kQueries; c += hn::Lanes(d)) {
      const V a = f(row, c);
      pairs(row, c, a, row + 1 < num_rows ? f(row + 1, c) : hn::Zero(d));
    }
  }
}

template <class Storage>
void softmax(const AttentionSoftmax<Storage>& op) {
  const D d;
  const AttentionTile& tile = op.tile;
  const SeenRows all = rows_seen_by_all(tile);
  const int64_t lanes = hn::Lanes(d);
  const V scale = hn::Set(d, tile.scale), least = hn::Set(d, -1e30f);
  for (int64_t c = 0; c < kQueries; c += lanes) {
    V most = least;
    const auto with_some = [&](int64_t from, int64_t to) HWY_ATTR {
      for (int64_t r = from; r < to; ++r) {
        const V s = hn::LoadU(d, op.scores + r * kQueries + c);
        most = hn::Max(most, hn::IfThenElse(seen(tile, r, c), s, least));
      }
    };
    with_some(0, all.first);
    for (int64_t r = all.first; r < all.last; ++r) {
      most = hn::Max(most, hn::LoadU(d, op.scores + r * kQueries + c));
    }
    with_some(all.last, tile.num_keys);
    const V before = hn::LoadU(d, op.max + c), m = hn::Max(before, hn::Mul(scale, most));
    const V rescale = hn::Exp(d, hn::Sub(before, m));
    hn::StoreU(m, d, op.max + c);
    hn::StoreU(rescale, d, op.rescale + c);
    hn::StoreU(hn::Mul(rescale, hn::LoadU(d, op.sum + c)), d, op.sum + c);
  }
  const auto weight = [&](int64_t r, int64_t c) HWY_ATTR {
    const V s = hn::LoadU(d, op.scores + r * kQueries + c);
    V p = hn::Exp(d, hn::MulSub(scale, s, hn::LoadU(d, op.max + c)));
    if (!all.has(r)) p = hn::IfThenElseZero(seen(tile, r, c), p);
    hn::StoreU(hn::Add(hn::LoadU(d, op.sum + c), p), d, op.sum + c);
    return p;
  };
  by_pairs(tile.num_keys, weight, [&](int64_t r, int64_t c, V a, V b) HWY_ATTR {
    if constexpr (std::is_same_v<Storage, float>) {
      hn::StoreU(a, d, op.weights + r * kQueries + c);
      if (r + 1 < tile.num_keys) hn::StoreU(b, d, op.weights + (r + 1) * kQueries + c);
    } else {
      store_pairs(rounded(a), rounded(b), op.weights + r * kQueries + 2 * c);
    }
  });
}

template <class Storage>
void softmax_backward(const AttentionSoftmaxBackward<Storage>& op) {
  const D d;
  const AttentionTile& tile = op.tile;
  const SeenRows all = rows_seen_by_all(tile);
  const V scale = hn::Set(d, tile.scale);
  const auto grad_score = [&](int64_t r, int64_t c) HWY_ATTR {
    const int64_t at = r * kQueries + c;
    V p = hn::Exp(d, hn::MulSub(scale, hn::LoadU(d, op.scores + at), hn::LoadU(d, op.lse + c)));
    if (!all.has(r)) p = hn::IfThenElseZero(seen(tile, r, c), p);
    const V shifted = hn::Sub(hn::LoadU(d, op.grad_weights + at), hn::LoadU(d, op.along + c));
    const V ds = hn::Mul(hn::Mul(p, scale), shifted);
    store(d, p, op.weights + at);
    store(d, ds, op.grad_scores + at);
    return ds;
  };
  by_pairs(tile.num_keys, grad_score, [&](int64_t r, int64_t c, V a, V b) HWY_ATTR {
    if constexpr (!std::is_same_v<Storage, float>) {
      store_pairs(rounded(a), rounded(b), op.grad_scores_right + r * kQueries + 2 * c);
    }
  });
}

void softmax_f32(const AttentionSoftmax<float>& op) {
  softmax(op);
}
void softmax_bf16(const AttentionSoftmax<BFloat16>& op) {
  softmax(op);
}
void softmax_backward_f32(const AttentionSoftmaxBackward<float>& op) {
  softmax_backward(op);
}
void softmax_backward_bf16(const AttentionSoftmaxBackward<BFloat16>& op) {
  softmax_backward(op);
}

}  // namespace HWY_NAMESPACE
}  // namespace attnres::kernel
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnres::kernel {

HWY_EXPORT(softmax_f32);
HWY_EXPORT(softmax_bf16);
HWY_EXPORT(softmax_backward_f32);
HWY_EXPORT(softmax_backward_bf16);

void attention_softmax(const AttentionSoftmax<float>& op) {
  HWY_DYNAMIC_DISPATCH(softmax_f32)(op);
}
void attention_softmax(const AttentionSoftmax<BFloat16>& op) {
  HWY_DYNAMIC_DISPATCH(softmax_bf16)(op);
}
void attention_softmax_backward(const AttentionSoftmaxBackward<float>& op) {
  HWY_DYNAMIC_DISPATCH(softmax_backward_f32)(op);
}
void attention_softmax_backward(const AttentionSoftmaxBackward<BFloat16>& op) {
  HWY_DYNAMIC_DISPATCH(softmax_backward_bf16)(op);
}

}  // namespace attnres::kernel
#endif  // HWY_ONCE
