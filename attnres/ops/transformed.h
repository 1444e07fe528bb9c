// Transformations of PyTorch that kernels know nothing of: a kernel reads numbers where they lie,
// and would return a result without the tangent, or of one sample for all.
#pragma once

#include <ATen/core/Tensor.h>

namespace attnres {

// Whether one of the inputs (some may be undefined) has a forward-mode tangent, or a torch.func
// transformation (grad, vjp, jvp, vmap ..) is at work. Operations are then composed of tensor
// operations, which PyTorch transforms.
bool is_transformed(at::TensorList inputs);

// For what has a kernel only: throws Error naming `operation` where its inputs are transformed.
void require_untransformed(const char* operation, at::TensorList inputs);

}  // namespace attnres
