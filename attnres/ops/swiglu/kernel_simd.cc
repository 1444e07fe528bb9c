#include "attnres/ops/exported_kernel.h"
#include "attnres/ops/swiglu/kernel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attnres/ops/swiglu/kernel_simd.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "attnres/ops/sigmoid-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace attnres::kernel {
namespace HWY_NAMESPACE {

template <class Storage>
void forward(const SwigluForward<Storage>& op, int64_t first, int64_t last) {
  const hn::ScalableTag<Compute<Storage>> d;
  for_each_vector(d, last - first, [&](size_t k, auto part) HWY_ATTR {
    const int64_t i = first + k;
    const auto gate = load(d, op.gate + i, part);
    const auto silu = hn::Mul(gate, sigmoid(d, gate));
    store(d, hn::Mul(silu, load(d, op.up + i, part)), op.y + i, part);
  });
}

template <class Storage>
void backward(const SwigluBackward<Storage>& op, int64_t first, int64_t last) {
  const hn::ScalableTag<Compute<Storage>> d;
  for_each_vector(d, last - first, [&](size_t k, auto part) HWY_ATTR {
    const int64_t i = first + k;
    const auto gate = load(d, op.gate + i, part), up = load(d, op.up + i, part);
    const auto dy = load(d, op.grad_y + i, part);
    const auto sigma = sigmoid(d, gate), silu = hn::Mul(gate, sigma);
    // sigma (1 + gate (1 - sigma)) = sigma + silu (1 - sigma)
    const auto slope = hn::MulAdd(silu, hn::Sub(hn::Set(d, 1), sigma), sigma);
    store(d, hn::Mul(hn::Mul(dy, up), slope), op.grad_gate + i, part);
    store(d, hn::Mul(dy, silu), op.grad_up + i, part);
  });
}

ATTNRES_COMPILE(swiglu_forward, SwigluForward, forward)
ATTNRES_COMPILE(swiglu_backward, SwigluBackward, backward)

}  // namespace HWY_NAMESPACE
}  // namespace attnres::kernel
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnres::kernel {

ATTNRES_EXPORT(swiglu_forward, SwigluForward)
ATTNRES_EXPORT(swiglu_backward, SwigluBackward)

}  // namespace attnres::kernel
#endif  // HWY_ONCE
