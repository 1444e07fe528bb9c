// Depth attention: a site's input as an attention over the outputs of everything before it
// (Attention Residuals, arXiv 2603.15031, equations 2 to 4). For every token,
//
//   h = sum_i alpha_i v_i,   alpha = softmax_i( w . (g * v_i / sqrt(mean(v_i^2) + eps)) )
//
// with N sources v_i of any shape [..., D], the pseudo-query w [D] and the key-norm gain g [D].
// There is no 1/sqrt(D), and the values are the sources as they are, not normalised.
//
// Sources share one shape, floating dtype and device; they may be strided, have no tokens, and
// be one (then h is the source). Query and gain are on the same device, in the sources' dtype or
// in float32. Statistics and softmax are float32, or float64 for float64 sources. Differentiable
// once in the sources, the query and the gain; beside its inputs only alpha, the scores and the
// sources' reciprocal RMS are kept for the backward, 3 N numbers per token. With forward-mode
// tangents, and under torch.func, it is composed of tensor operations, which have them.
//
// Everything here throws Error, naming the argument, where the inputs are not as said.
//
// Largest error of h and of the sources' gradients, relative to their largest magnitude, for scores
// of standard deviation up to 4 and up to 2,000 channels: float32 5e-6, float64 1e-14, bfloat16
// 4e-3 (the rounding of the result). Results do not depend on the number of threads, bit for bit.
//
// In Python after torch.ops.load_library: torch.ops.attnres.depth_attention(sources, query,
// key_gain, eps), depth_attention_weights and depth_attention_composed, which returns h alone.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace attnres {

// h [..., D], in the sources' dtype.
at::Tensor depth_attention(at::TensorList sources, const at::Tensor& query,
                           const at::Tensor& key_gain, double eps);

// The depth weights alpha [N, ...]: one per source and token, float32 or float64.
at::Tensor depth_attention_weights(at::TensorList sources, const at::Tensor& query,
                                   const at::Tensor& key_gain, double eps);

// Whether hand-written kernels serve these sources: on the CPU float32, float64 or bfloat16, on
// GPUs at most 256 of float32 or bfloat16 and of a width that they have. Otherwise the operation is
// composed of tensor operations.
bool can_fuse_depth_attention(at::TensorList sources);

// The instruction sets that the kernel can use on this machine, in Highway's names, best first.
std::vector<std::string> depth_attention_instruction_sets();

struct DepthAttentionResult {
  at::Tensor output;   // h [..., D]
  at::Tensor weights;  // alpha [N, ...]
};

// The same, composed of tensor operations: any device, any floating dtype, differentiable any
// number of times, and the sources are copied. Inputs are not checked.
DepthAttentionResult depth_attention_composed(at::TensorList sources, const at::Tensor& query,
                                              const at::Tensor& key_gain, double eps);

}  // namespace attnres
