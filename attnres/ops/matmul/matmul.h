// Linear maps without bias, y = x W^T, forward and backward:
//
//   dL/dx = g W, dL/dW = g^T x        g = dL/dy
//
// Maps that read the same x are one operation: the gradients that reach x through each are added up
// inside the products rather than in passes over memory of their own.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace attnres {

// x [..., K] and W [N, K] of one dtype and device give [..., N]. Throws Error naming the shapes
// where they do not fit, and when its gradient is to be differentiated again.
at::Tensor linear_map(const at::Tensor& x, const at::Tensor& weight);

// Of each weight [N_i, K] an output [..., N_i].
std::vector<at::Tensor> linear_maps(const at::Tensor& x, at::TensorList weights);

}  // namespace attnres
