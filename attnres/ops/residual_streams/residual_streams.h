// What mechanisms compute that carry m residual streams a token, H of m rows of width D, each in
// one pass over the streams forward and one backward: hyper-connections (arXiv 2409.19606) and
// what came of them. On the CPU in float32, float64 and bfloat16, computed in float32 or better;
// differentiable once. Where H has a gradient slot (gradient_slot.h), its gradients go there.
//
// All throw Error where shapes do not fit.
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
// is made.
at::Tensor project_normalised(const at::Tensor& x, const at::Tensor& projection_RK, double eps);

}  // namespace attnres
