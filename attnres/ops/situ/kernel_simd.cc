#include <algorithm>

#include "attnres/ops/exported_kernel.h"
#include "attnres/ops/situ/kernel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attnres/ops/situ/kernel_simd.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "attnres/ops/sigmoid-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace attnres::kernel {
namespace HWY_NAMESPACE {

// x within the bound, and its derivative.
template <class V>
struct Bounded {
  V value, slope;
};

template <class D, class V = hn::Vec<D>>
HWY_INLINE Bounded<V> bounded(D d, V x, hn::TFromD<D> bound) {
  const V one = hn::Set(d, 1);
  if (bound <= 0) return {x, one};
  const V t = hn::Tanh(d, hn::Mul(x, hn::Set(d, 1 / bound)));
  return {hn::Mul(hn::Set(d, bound), t), hn::NegMulAdd(t, t, one)};
}

// Calls f(i, gate, up, part) with vectors of elements, i the first one's place.
template <class Storage, class F>
HWY_INLINE void for_elements(const Situ<Storage>& of, int64_t first, int64_t last, const F& f) {
  const hn::ScalableTag<Compute<Storage>> d;
  while (first < last) {
    const int64_t row = first / of.width, column = first % of.width;
    const int64_t count = std::min(last - first, of.width - column);
    const Storage *gate = of.gate + row * of.gate_stride + column,
                  *up = of.up + row * of.up_stride + column;
    for_each_vector(d, count, [&](size_t k, auto part) HWY_ATTR {
      f(first + static_cast<int64_t>(k), load(d, gate + k, part), load(d, up + k, part), part);
    });
    first += count;
  }
}

template <class Storage>
void forward(const SituForward<Storage>& op, int64_t first, int64_t last) {
  const hn::ScalableTag<Compute<Storage>> d;
  for_elements(op.of, first, last, [&](int64_t i, auto gate, auto up, auto part) HWY_ATTR {
    const auto gated = hn::Mul(bounded(d, gate, op.of.beta).value, sigmoid(d, gate));
    store(d, hn::Mul(gated, bounded(d, up, op.of.linear_beta).value), op.y + i, part);
  });
}

template <class Storage>
void backward(const SituBackward<Storage>& op, int64_t first, int64_t last) {
  const hn::ScalableTag<Compute<Storage>> d;
  for_elements(op.of, first, last, [&](int64_t i, auto gate, auto up, auto part) HWY_ATTR {
    const auto a = bounded(d, gate, op.of.beta), b = bounded(d, up, op.of.linear_beta);
    const auto sigma = sigmoid(d, gate);
    const auto along = hn::Mul(load(d, op.grad_y + i, part), sigma);
    const auto slope = hn::MulAdd(a.value, hn::Sub(hn::Set(d, 1), sigma), a.slope);
    store(d, hn::Mul(hn::Mul(along, b.value), slope), op.grad_gate + i, part);
    store(d, hn::Mul(hn::Mul(along, a.value), b.slope), op.grad_up + i, part);
  });
}

ATTNRES_COMPILE(situ_forward, SituForward, forward)
ATTNRES_COMPILE(situ_backward, SituBackward, backward)

}  // namespace HWY_NAMESPACE
}  // namespace attnres::kernel
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnres::kernel {

ATTNRES_EXPORT(situ_forward, SituForward)
ATTNRES_EXPORT(situ_backward, SituBackward)

}  // namespace attnres::kernel
#endif  // HWY_ONCE
