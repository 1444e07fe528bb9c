#include "attnres/ops/exported_kernel.h"
#include "attnres/ops/rotary/kernel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attnres/ops/rotary/kernel_simd.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "attnres/ops/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace attnres::kernel {
namespace HWY_NAMESPACE {

template <class Storage>
void turn(const Rotary<Storage>& op, int64_t first, int64_t last) {
  const hn::ScalableTag<Compute<Storage>> d;
  const int64_t half = op.half;
  for (int64_t row = first; row < last; ++row) {
    const auto* cosine = op.cosine + row % op.num_tokens * half;
    const auto* sine = op.sine + row % op.num_tokens * half;
    for (int64_t head = row * op.heads; head < (row + 1) * op.heads; ++head) {
      const Storage *a = op.x + 2 * head * half, *b = a + half;
      Storage* y = op.y + 2 * head * half;
      for_each_vector(d, half, [&](size_t k, auto part) HWY_ATTR {
        const auto c = load(d, cosine + k, part), s = load(d, sine + k, part);
        const auto va = load(d, a + k, part), vb = load(d, b + k, part);
        store(d, hn::NegMulAdd(vb, s, hn::Mul(va, c)), y + k, part);
        store(d, hn::MulAdd(va, s, hn::Mul(vb, c)), y + half + k, part);
      });
    }
  }
}

ATTNRES_COMPILE(rotary, Rotary, turn)

}  // namespace HWY_NAMESPACE
}  // namespace attnres::kernel
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnres::kernel {

ATTNRES_EXPORT(rotary, Rotary)

}  // namespace attnres::kernel
#endif  // HWY_ONCE
