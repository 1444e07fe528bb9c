// RMSNorm (Zhang and Sennrich, arXiv 1910.07467): y = gain * x / sqrt(mean(x^2) + eps) over the
// last dimension.
#pragma once

#include <ATen/core/Tensor.h>

namespace attnres {

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& gain, double eps);

}  // namespace attnres
