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

void rotary_f32(const Rotary<float>& op, int64_t first, int64_t last) {
  turn(op, first, last);
}
void rotary_f64(const Rotary<double>& op, int64_t first, int64_t last) {
  turn(op, first, last);
}
void rotary_bf16(const Rotary<BFloat16>& op, int64_t first, int64_t last) {
  turn(op, first, last);
}

}  // namespace HWY_NAMESPACE
}  // namespace attnres::kernel
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnres::kernel {

HWY_EXPORT(rotary_f32);
HWY_EXPORT(rotary_f64);
HWY_EXPORT(rotary_bf16);

void rotary(const Rotary<float>& op, int64_t first, int64_t last) {
  HWY_DYNAMIC_DISPATCH(rotary_f32)(op, first, last);
}
void rotary(const Rotary<double>& op, int64_t first, int64_t last) {
  HWY_DYNAMIC_DISPATCH(rotary_f64)(op, first, last);
}
void rotary(const Rotary<BFloat16>& op, int64_t first, int64_t last) {
  HWY_DYNAMIC_DISPATCH(rotary_bf16)(op, first, last);
}

}  // namespace attnres::kernel
#endif  // HWY_ONCE
