// What mechanisms compute that carry m residual streams a token, H of m rows of width D:
// hyper-connections (arXiv 2409.19606) and what came of them. Computed in float32 or better. Where
// there are kernels each is one pass over the streams forward and one backward, and differentiable
// once; where H has a gradient slot (gradient_slot.h), its gradients go there. Elsewhere they are
// composed of tensor operations.
//
// All throw Error where shapes, dtypes or devices do not fit.
//
// In Python: torch.ops.attnres.read_streams(streams, read), write_streams(streams, mix, write, y)
// and project_normalised(x, projection, eps).
#pragma once

#include <ATen/core/Tensor.h>

namespace attnres {

// h = sum_i a_i H_i: [T, D] for H [T, m, D] and a [T, m], which is float32 or better.
at::Tensor read_streams(const at::Tensor& streams_TMD, const at::Tensor& read_TM);

// What a sublayer leaves of its output y [T, D], in H's dtype; maps in float32 or better.
struct StreamsWriting {
  at::Tensor mix_TMM;   // A, a row for each new stream; undefined: the identity
  at::Tensor write_TM;  // b
  at::Tensor y_TD;
};

// H'_j = sum_i A_ji H_i + b_j y: [T, m, D].
at::Tensor write_streams(const at::Tensor& streams_TMD, const StreamsWriting& writing);

// W (x / sqrt(mean(x^2) + eps)) of each K numbers, those of one or more of the last dimensions of
// x, and W [R, K]: [..., R] in float32 or better, the product in W's dtype. No normalised copy of x
// is made. Of matrix products, so alike on every device.
at::Tensor project_normalised(const at::Tensor& x, const at::Tensor& projection_RK, double eps);

// The same composed of tensor operations, of what was checked: on any device, and as often
// differentiable as one likes. The last of rows: [N, R].
at::Tensor read_streams_composed(const at::Tensor& streams_TMD, const at::Tensor& read_TM);
at::Tensor write_streams_composed(const at::Tensor& streams_TMD, const StreamsWriting& writing);
at::Tensor project_normalised_composed(const at::Tensor& x_NK, const at::Tensor& projection_RK,
                                       double eps);

}  // namespace attnres
