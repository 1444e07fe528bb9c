#include <algorithm>

#include "attnres/ops/exported_kernel.h"
#include "attnres/ops/gated_delta_rule/kernel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attnres/ops/gated_delta_rule/kernel_simd.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "attnres/ops/gated_delta_rule/columns-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace attnres::kernel {
namespace HWY_NAMESPACE {

template <class Storage>
void gated_delta_rule_pieces(const GatedDeltaRule<Storage>& op, int64_t first, int64_t last) {
  DeltaRuleColumns<Storage> columns(op);
  const int64_t most = columns.most();
  for (int64_t piece = first; piece < last; ++piece) {
    const int64_t begin = piece % op.pieces() * kDeltaRuleColumns;
    const int64_t end = std::min(op.value_width, begin + kDeltaRuleColumns);
    for (int64_t column = begin; column < end; column += most) {
      columns.run(piece / op.pieces(), column, std::min(most, end - column));
    }
  }
}

ATTNRES_COMPILE(gated_delta_rule, GatedDeltaRule, gated_delta_rule_pieces)

}  // namespace HWY_NAMESPACE
}  // namespace attnres::kernel
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnres::kernel {

ATTNRES_EXPORT(gated_delta_rule, GatedDeltaRule)

}  // namespace attnres::kernel
#endif  // HWY_ONCE
