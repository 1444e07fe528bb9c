// The linear maps of mixers, which decide about weights: where parameters are kept in a wider dtype
// than activations, these are computed in the wider one.
#pragma once

#include <ATen/core/Tensor.h>

namespace attnres {

// x W^T + b for x [..., K], W [N, K] and b [N], or none: [..., N] in W's dtype.
at::Tensor wide_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {});

}  // namespace attnres
