// What the two directions of fused depth attention and of its phases share.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

#include "attnres/ops/depth_attention/kernel.h"
#include "attnres/ops/tensors.h"

namespace attnres {

// h [..., D], and [N, ...] each: alpha, the scores, the sources' reciprocal RMS; without numbers
// where they are not wanted.
using FusedResult = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

// Calls attnres::depth_attention_fused through the dispatcher. Alpha is given where `give_weights`
// or `for_backward`, which also gives the rest; without it there is no gradient.
FusedResult depth_attention_fused(at::TensorList sources, const at::Tensor& query,
                                  const at::Tensor& key_gain, double eps, bool give_weights,
                                  bool for_backward);

// w * g in the compute type: a product rounded to bfloat16 would be another query.
inline at::Tensor fold_query(const at::Tensor& query, const at::Tensor& key_gain,
                             at::ScalarType compute) {
  return query.to(compute).mul(key_gain.to(compute)).contiguous();
}

}  // namespace attnres
