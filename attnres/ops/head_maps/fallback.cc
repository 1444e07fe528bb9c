#include <ATen/ops/matmul.h>

#include "attnres/ops/composed.h"
#include "attnres/ops/head_maps/head_maps.h"

namespace attnres {

at::Tensor head_maps_composed(const at::Tensor& x, const at::Tensor& w_HNK, bool transposed) {
  note_composed("head maps", x);
  const at::Tensor maps = transposed ? w_HNK : w_HNK.transpose(1, 2);
  return at::matmul(x.transpose(0, 1), maps).transpose(0, 1).contiguous();
}

}  // namespace attnres
