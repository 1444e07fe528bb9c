#include "attnres/formats/paired_rows.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>

namespace attnres {
namespace {

at::Tensor reordered(const PairedRows& of, const at::Tensor& rows, int64_t outer, int64_t inner) {
  const at::Tensor of_heads = rows.view({of.heads, of.before + 2 * of.pairs, -1});
  const at::Tensor turned = of_heads.narrow(1, of.before, 2 * of.pairs)
                                .unflatten(1, {outer, inner})
                                .transpose(1, 2)
                                .flatten(1, 2);
  return at::cat({of_heads.narrow(1, 0, of.before), turned}, 1).view(rows.sizes());
}

}  // namespace

at::Tensor PairedRows::side_by_side(const at::Tensor& rows) const {
  return reordered(*this, rows, 2, pairs);
}

at::Tensor PairedRows::in_halves(const at::Tensor& rows) const {
  return reordered(*this, rows, pairs, 2);
}

}  // namespace attnres
