#include <algorithm>

#include "attnres/ops/exported_kernel.h"
#include "attnres/ops/situ/kernel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attnres/ops/situ/kernel_simd.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "attnres/ops/sigmoid-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace attnres::kernel {
namespace HWY_NAMESPACE {

template <class Storage>
void situ_elements(const Situ<Storage>& op, int64_t first, int64_t last) {
  const hn::ScalableTag<Compute<Storage>> d;
  const auto bounded = [&](auto x, auto bound) HWY_ATTR {
    return hn::Mul(hn::Set(d, bound), hn::Tanh(d, hn::Mul(x, hn::Set(d, 1 / bound))));
  };
  while (first < last) {
    const int64_t row = first / op.width, column = first % op.width;
    const int64_t count = std::min(last - first, op.width - column);
    const Storage *gate = op.gate + row * op.gate_stride + column,
                  *up = op.up + row * op.up_stride + column;
    Storage* y = op.y + first;
    for_each_vector(d, count, [&](size_t k, auto part) HWY_ATTR {
      const auto g = load(d, gate + k, part), u = load(d, up + k, part);
      const auto gated = hn::Mul(bounded(g, op.beta), sigmoid(d, g));
      store(d, hn::Mul(gated, op.linear_beta > 0 ? bounded(u, op.linear_beta) : u), y + k, part);
    });
    first += count;
  }
}

ATTNRES_COMPILE(situ, Situ, situ_elements)

}  // namespace HWY_NAMESPACE
}  // namespace attnres::kernel
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnres::kernel {

ATTNRES_EXPORT(situ, Situ)

}  // namespace attnres::kernel
#endif  // HWY_ONCE
