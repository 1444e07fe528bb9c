// Depth attention's ablation arms (arXiv 2603.15031, Table 4) and every mechanism that weighs its
// sources: what the fused operation of ops/depth_attention does not serve. For every token and head
// h, a group of D / H channels,
//
//   h_c = sum_i alpha_{i,h(c)} v_{i,c},   alpha_{.,h} = weigh_i( sum_{c in h} q_c k_{i,c} )
//
// where k_i = g * v_i / sqrt(mean(v_i^2) + eps), the mean over all D channels, or v_i itself, and
// weigh is a softmax over the sources or a sigmoid of each. Or with a kernel that factorises, the
// linear attention of Katharopoulos et al. (arXiv 2006.16236), over depth (section 6):
//
//   alpha_{i,h} = phi_{i,h} / sum_j phi_{j,h},   phi_{i,h} = sum_{c in h} f(q_c) f(k_{i,c})
//
// where f(x) = elu(x) + 1, which is more than zero: x + 1 from zero on, and e^x below.
//
// Scores and sums are computed in float32 or better. Where there are kernels they take one pass
// over the sources each, forward and backward, and are differentiable once; the gradients of
// sources with a slot (gradient_slot.h) go there. Elsewhere they are composed of tensor operations.
//
// In Python: torch.ops.attnres.depth_scores(sources, query, key_gain, eps, heads, factorised) and
// weighted_sum(sources, weights).
#pragma once

#include <ATen/core/Tensor.h>

namespace attnres {

// How the weights of the sources come of queries and keys.
enum class DepthWeighing { softmax, sigmoid, factorised };

struct DepthScoring {
  at::Tensor query;     // q: [D], or [..., D] when it depends on the input
  at::Tensor key_gain;  // g [D]; undefined: keys are the sources as they are
  double eps = 1e-6;
  int64_t heads = 1;  // H, divides D
  DepthWeighing weighing = DepthWeighing::softmax;
};

// q . k_i, or phi_i where the kernel factorises: [N, ..., H], float32 or float64. Throws Error
// where shapes, dtypes or devices do not fit.
at::Tensor depth_scores(at::TensorList sources, const DepthScoring& scoring);

// f above, exact far below zero too.
at::Tensor feature_map(const at::Tensor& x);

// The weights of these scores, over their first dimension.
at::Tensor weigh_scores(const at::Tensor& scores, DepthWeighing weighing);
// The score of a source that gets no weight.
double score_of_nothing(DepthWeighing weighing);

// sum_i weights_i v_i for weights [N, ..., H], or [N] for all tokens alike; in the sources' dtype.
// Throws Error where shapes, dtypes or devices do not fit.
at::Tensor weighted_sum(at::TensorList sources, const at::Tensor& weights);

// The same composed of tensor operations, of what was checked: on any device, and as often
// differentiable as one likes.
at::Tensor depth_scores_composed(at::TensorList sources, const DepthScoring& scoring);
at::Tensor weighted_sum_composed(at::TensorList sources, const at::Tensor& weights);

}  // namespace attnres
