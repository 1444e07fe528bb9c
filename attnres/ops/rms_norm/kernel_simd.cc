#include <cmath>

#include "attnres/ops/rms_norm/kernel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attnres/ops/rms_norm/kernel_simd.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "attnres/ops/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace attnres::kernel {
namespace HWY_NAMESPACE {

template <class Storage>
void forward(const RmsNormForward<Storage>& op, int64_t first, int64_t last) {
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
    op.rho_T[t] = rho;
    for_each_vector(d, D, [&](size_t k, auto part) HWY_ATTR {
      const auto normalized = hn::Mul(load(d, h + k, part), hn::Set(d, rho));
      store(d, hn::Mul(load(d, op.gain_D + k, part), normalized), op.y_TD + t * D + k, part);
    });
  }
}

template <class Storage>
void backward(const RmsNormBackward<Storage>& op, int64_t first, int64_t last,
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

#define ATTNRES_DEFINE(SUFFIX, STORAGE)                                                            \
  void rms_norm_forward_##SUFFIX(const RmsNormForward<STORAGE>& op, int64_t first, int64_t last) { \
    forward(op, first, last);                                                                      \
  }                                                                                                \
  void rms_norm_backward_##SUFFIX(const RmsNormBackward<STORAGE>& op, int64_t first, int64_t last, \
                                  Compute<STORAGE>* grad_gain_D) {                                 \
    backward(op, first, last, grad_gain_D);                                                        \
  }

ATTNRES_DEFINE(f32, float)
ATTNRES_DEFINE(f64, double)
ATTNRES_DEFINE(bf16, BFloat16)

#undef ATTNRES_DEFINE

}  // namespace HWY_NAMESPACE
}  // namespace attnres::kernel
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnres::kernel {

#define ATTNRES_EXPORT(SUFFIX, STORAGE)                                                   \
  HWY_EXPORT(rms_norm_forward_##SUFFIX);                                                  \
  HWY_EXPORT(rms_norm_backward_##SUFFIX);                                                 \
  void rms_norm_forward(const RmsNormForward<STORAGE>& op, int64_t first, int64_t last) { \
    HWY_DYNAMIC_DISPATCH(rms_norm_forward_##SUFFIX)(op, first, last);                     \
  }                                                                                       \
  void rms_norm_backward(const RmsNormBackward<STORAGE>& op, int64_t first, int64_t last, \
                         Compute<STORAGE>* grad_gain_D) {                                 \
    HWY_DYNAMIC_DISPATCH(rms_norm_backward_##SUFFIX)(op, first, last, grad_gain_D);       \
  }

ATTNRES_EXPORT(f32, float)
ATTNRES_EXPORT(f64, double)
ATTNRES_EXPORT(bf16, BFloat16)

}  // namespace attnres::kernel
#endif  // HWY_ONCE
