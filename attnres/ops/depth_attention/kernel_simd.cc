// The kernels for every instruction set that Highway knows, chosen at run time.
#include <string>
#include <vector>

#include "attnres/ops/depth_attention/kernel.h"
#include "attnres/ops/depth_attention/kernel_phase_two.h"

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

#define ATTNRES_DEFINE(SUFFIX, STORAGE)                                                          \
  void forward_##SUFFIX(const DepthAttentionForward<STORAGE>& op, int64_t first, int64_t last) { \
    ForwardPass<STORAGE>(op).run(first, last);                                                   \
  }                                                                                              \
  void backward_##SUFFIX(const DepthAttentionBackward<STORAGE>& op, int64_t first, int64_t last, \
                         Compute<STORAGE>* grad_folded_queries_SD) {                             \
    BackwardPass<STORAGE>(op, grad_folded_queries_SD).run(first, last);                          \
  }                                                                                              \
  void two_forward_##SUFFIX(const PhaseTwoForward<STORAGE>& op, int64_t first, int64_t last) {   \
    PhaseTwoForwardPass<STORAGE>(op).run(first, last);                                           \
  }                                                                                              \
  void two_backward_##SUFFIX(const PhaseTwoBackward<STORAGE>& op, int64_t first, int64_t last,   \
                             Compute<STORAGE>* grad_folded_query_D,                              \
                             Compute<STORAGE>* grad_gain_D) {                                    \
    PhaseTwoBackwardPass<STORAGE>(op, grad_folded_query_D, grad_gain_D).run(first, last);        \
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

std::vector<std::string> instruction_sets() {
  std::vector<std::string> names;
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    names.emplace_back(hwy::TargetName(target));
  }
  return names;
}

#define ATTNRES_EXPORT(SUFFIX, STORAGE)                                                           \
  HWY_EXPORT(forward_##SUFFIX);                                                                   \
  HWY_EXPORT(backward_##SUFFIX);                                                                  \
  HWY_EXPORT(two_forward_##SUFFIX);                                                               \
  HWY_EXPORT(two_backward_##SUFFIX);                                                              \
  void depth_attention_forward(const DepthAttentionForward<STORAGE>& op, int64_t first,           \
                               int64_t last) {                                                    \
    HWY_DYNAMIC_DISPATCH(forward_##SUFFIX)(op, first, last);                                      \
  }                                                                                               \
  void depth_attention_backward(const DepthAttentionBackward<STORAGE>& op, int64_t first,         \
                                int64_t last, Compute<STORAGE>* grad_folded_queries_SD) {         \
    HWY_DYNAMIC_DISPATCH(backward_##SUFFIX)(op, first, last, grad_folded_queries_SD);             \
  }                                                                                               \
  void phase_two_forward(const PhaseTwoForward<STORAGE>& op, int64_t first, int64_t last) {       \
    HWY_DYNAMIC_DISPATCH(two_forward_##SUFFIX)(op, first, last);                                  \
  }                                                                                               \
  void phase_two_backward(const PhaseTwoBackward<STORAGE>& op, int64_t first, int64_t last,       \
                          Compute<STORAGE>* grad_folded_query_D, Compute<STORAGE>* grad_gain_D) { \
    HWY_DYNAMIC_DISPATCH(two_backward_##SUFFIX)                                                   \
    (op, first, last, grad_folded_query_D, grad_gain_D);                                          \
  }

ATTNRES_EXPORT(f32, float)
ATTNRES_EXPORT(f64, double)
ATTNRES_EXPORT(bf16, BFloat16)

}  // namespace attnres::kernel
#endif  // HWY_ONCE
