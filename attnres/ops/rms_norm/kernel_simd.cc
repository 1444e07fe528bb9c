#include "attnres/ops/exported_kernel.h"
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

ATTNRES_COMPILE(rms_norm_forward, RmsNormForward, rms_norm_forward_rows)
ATTNRES_COMPILE_WITH_SUMS(rms_norm_backward, RmsNormBackward, rms_norm_backward_rows)

}  // namespace HWY_NAMESPACE
}  // namespace attnres::kernel
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnres::kernel {

ATTNRES_EXPORT(rms_norm_forward, RmsNormForward)
ATTNRES_EXPORT_WITH_SUMS(rms_norm_backward, RmsNormBackward)

}  // namespace attnres::kernel
#endif  // HWY_ONCE
