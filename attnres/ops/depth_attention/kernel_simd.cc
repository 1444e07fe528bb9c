// The kernels for every instruction set that Highway knows, chosen at run time.
#include <string>
#include <vector>

#include "attnres/ops/depth_attention/kernel.h"
#include "attnres/ops/depth_attention/kernel_phase_two.h"
#include "attnres/ops/exported_kernel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attnres/ops/depth_attention/kernel_simd.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "attnres/ops/depth_attention/pass_over_sources-inl.h"
#include "attnres/ops/depth_attention/phase_two-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace attnres::kernel {
namespace HWY_NAMESPACE {

ATTNRES_COMPILE(depth_attention_forward, DepthAttentionForward, pass_over_sources)
ATTNRES_COMPILE_WITH_SUMS(depth_attention_backward, DepthAttentionBackward,
                          pass_over_sources_backward)
ATTNRES_COMPILE(phase_two_forward, PhaseTwoForward, phase_two_forward_pass)
ATTNRES_COMPILE_WITH_SUMS(phase_two_backward, PhaseTwoBackward, phase_two_backward_pass)

}  // namespace HWY_NAMESPACE
}  // namespace attnres::kernel
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnres::kernel {

std::vector<std::string> instruction_sets() {
  std::vector<std::string> names;
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    names.emplace_back(hwy::TargetName(target));
  }
  return names;
}

ATTNRES_EXPORT(depth_attention_forward, DepthAttentionForward)
ATTNRES_EXPORT_WITH_SUMS(depth_attention_backward, DepthAttentionBackward)
ATTNRES_EXPORT(phase_two_forward, PhaseTwoForward)
ATTNRES_EXPORT_WITH_SUMS(phase_two_backward, PhaseTwoBackward)

}  // namespace attnres::kernel
#endif  // HWY_ONCE
