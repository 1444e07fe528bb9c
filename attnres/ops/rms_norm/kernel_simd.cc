#include "attnres/ops/rms_norm/kernel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attnres/ops/rms_norm/kernel_simd.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "attnres/ops/rms_norm/rms_norm-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace attnres::kernel {
namespace HWY_NAMESPACE {

#define ATTNRES_DEFINE(SUFFIX, STORAGE)                                                            \
  void rms_norm_forward_##SUFFIX(const RmsNormForward<STORAGE>& op, int64_t first, int64_t last) { \
    rms_norm_forward_rows(op, first, last);                                                        \
  }                                                                                                \
  void rms_norm_backward_##SUFFIX(const RmsNormBackward<STORAGE>& op, int64_t first, int64_t last, \
                                  Compute<STORAGE>* grad_gain_D) {                                 \
    rms_norm_backward_rows(op, first, last, grad_gain_D);                                          \
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
