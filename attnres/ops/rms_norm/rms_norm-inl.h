// RMSNorm, for one instruction set.
#if defined(ATTNRES_RMS_NORM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNRES_RMS_NORM_INL_H_
#undef ATTNRES_RMS_NORM_INL_H_
#else
#define ATTNRES_RMS_NORM_INL_H_
#endif

#include <cmath>

#include "attnres/ops/rms_norm/kernel.h"
#include "attnres/ops/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnres::kernel {
namespace HWY_NAMESPACE {

template <class Storage>
void rms_norm_forward_rows(const RmsNormForward<Storage>& op, int64_t first, int64_t last) {
  using T = Compute<Storage>;
  const hn::ScalableTag<T> d;
  const int64_t D = op.width;
  for (int64_t t = first; t < last; ++t) {
    auto square = hn::Zero(d);
    if (op.pending_TD != nullptr) {
      const Storage *a = op.state_TD + t * D, *b = op.pending_TD + t * D;
      Storage* h = op.h_TD + t * D;
      for_each_vector(d, D, [&](size_t k, auto part) HWY_ATTR {
        store(d, hn::Add(load(d, a + k, part), load(d, b + k, part)), h + k, part);
        const auto sum = load(d, h + k, part);  // as it was rounded
        square = hn::MulAdd(sum, sum, square);
      });
    } else {
      for_each_vector(d, D, [&](size_t k, auto part) HWY_ATTR {
        const auto h = load(d, op.state_TD + t * D + k, part);
        square = hn::MulAdd(h, h, square);
      });
    }
    const Storage* h = (op.pending_TD != nullptr ? op.h_TD : op.state_TD) + t * D;
    const T mean = hn::GetLane(hn::SumOfLanes(d, square)) / static_cast<T>(D);
    const T rho = T{1} / std::sqrt(mean + static_cast<T>(op.eps));
    if (op.rho_T != nullptr) op.rho_T[t] = rho;
    for_each_vector(d, D, [&](size_t k, auto part) HWY_ATTR {
      const auto normalized = hn::Mul(load(d, h + k, part), hn::Set(d, rho));
      store(d, hn::Mul(load(d, op.gain_D + k, part), normalized), op.y_TD + t * D + k, part);
    });
  }
}

template <class Storage>
void rms_norm_backward_rows(const RmsNormBackward<Storage>& op, int64_t first, int64_t last,
                            Compute<Storage>* grad_gain) {
  using T = Compute<Storage>;
  const hn::ScalableTag<T> d;
  const int64_t D = op.width;
  for (int64_t t = first; t < last; ++t) {
    const Storage *h = op.h_TD + t * D, *dy = op.grad_y_TD + t * D;
    auto along = hn::Zero(d);
    for_each_vector(d, D, [&](size_t k, auto part) HWY_ATTR {
      const auto u = hn::Mul(load(d, op.gain_D + k, part), load(d, dy + k, part));
      along = hn::MulAdd(u, load(d, h + k, part), along);
    });
    const T rho = op.rho_T[t];
    const auto scale = hn::Set(d, rho);
    const auto back =
        hn::Set(d, rho * rho * rho * hn::GetLane(hn::SumOfLanes(d, along)) / static_cast<T>(D));
    for_each_vector(d, D, [&](size_t k, auto part) HWY_ATTR {
      const auto grad_y = load(d, dy + k, part), state = load(d, h + k, part);
      const auto normalized = hn::Mul(state, scale);
      store(d, hn::MulAdd(grad_y, normalized, load(d, grad_gain + k, part)), grad_gain + k, part);
      auto dh = hn::Mul(scale, hn::Mul(load(d, op.gain_D + k, part), grad_y));
      dh = hn::NegMulAdd(back, state, dh);
      if (op.grad_later_TD != nullptr) {
        dh = hn::Add(dh, load(d, op.grad_later_TD + t * D + k, part));
      }
      store(d, dh, op.grad_h_TD + t * D + k, part);
    });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace attnres::kernel
HWY_AFTER_NAMESPACE();

#endif  // per target
