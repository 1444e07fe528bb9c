// The functions of gates and activations, for one instruction set.
#if defined(ATTNRES_OPS_SIGMOID_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNRES_OPS_SIGMOID_INL_H_
#undef ATTNRES_OPS_SIGMOID_INL_H_
#else
#define ATTNRES_OPS_SIGMOID_INL_H_
#endif

#include "attnres/ops/simd-inl.h"
#include "hwy/contrib/math/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnres::kernel {
namespace HWY_NAMESPACE {

// 1 / (1 + e^-x), with e^-x held below what overflows.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V sigmoid(D d, V x) {
  const V one = hn::Set(d, 1);
  return hn::Div(one, hn::Add(one, hn::Exp(d, hn::Min(hn::Neg(x), hn::Set(d, 80)))));
}

// ln(1 + e^x) = max(x, 0) + ln(1 + e^-|x|)
template <class D, class V = hn::Vec<D>>
HWY_INLINE V softplus(D d, V x) {
  const V small = hn::Log1p(d, hn::Exp(d, hn::Neg(hn::Abs(x))));
  return hn::Add(hn::Max(x, hn::Zero(d)), small);
}

}  // namespace HWY_NAMESPACE
}  // namespace attnres::kernel
HWY_AFTER_NAMESPACE();

#endif  // per target
