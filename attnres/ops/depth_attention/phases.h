// Both phases on CPU tensors, forward and backward, without autograd: what the schedule of models
// (two_phase.cc) and the dispatcher's operations (phase_operations.cc) share. The kernels' headers
// have the formulas. Queries are folded, pseudo-query times key gain, in the compute type.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <tuple>
#include <vector>

namespace attnres {

// 1 / RMS of a source, one number a token.
struct InverseRms {
  at::Tensor values;   // undefined: not known and not wanted
  bool known = false;  // else it is written
};

// Where the gradient of a source goes: in its dtype, or added up in its compute type.
struct GradientTarget {
  at::Tensor gradient;      // contiguous; undefined: not wanted
  bool accumulate = false;  // else it is overwritten
};

// What phase 1 leaves for S sites, of N sources.
struct PhaseOneResult {
  std::vector<at::Tensor> outputs;  // o, each [..., D]
  at::Tensor max, sum;              // m and ell, [S, ...]
  at::Tensor scores, weights;       // [S N, ...]; without numbers where not for a backward
};

// To be filled by the kernel. Also for Meta functions.
PhaseOneResult allocate_phase_one(const at::Tensor& source, int64_t num_sources, int64_t num_sites,
                                  bool for_backward);

void phase_one_forward(at::TensorList sources_N, const std::vector<InverseRms>& inverse_rms_N,
                       const at::Tensor& queries_SD, double eps, const PhaseOneResult& result);

// What phase 2 tells phase 1's backward of the rest of the softmax, one of them (kernel.h).
struct JointSoftmax {
  at::Tensor grad_sum = {};           // of ell, [S, ...]
  at::Tensor other_grad_scores = {};  // the sum of the recent scores' gradients, [S, ...]
};

// Returns the queries' gradients [S, D], in the compute type.
at::Tensor phase_one_backward(at::TensorList sources_N, at::TensorList inverse_rms_N,
                              const at::Tensor& queries_SD, const at::Tensor& scores,
                              const at::Tensor& weights, at::TensorList grad_outputs_S,
                              const JointSoftmax& joint,
                              const std::vector<GradientTarget>& grad_sources_N);

// What a site reads, and the norm after it.
struct PhaseTwoInputs {
  at::Tensor earlier = {}, max = {}, sum = {};  // o, m, ell of phase 1; undefined: there was none
  std::vector<at::Tensor> recent = {};          // K; the last is filled where it has parts
  at::Tensor partial = {}, pending = {};        // its parts, whose sum it is; both or neither
  at::Tensor query_D = {};
  double eps = 0;
  at::Tensor norm_gain_D = {};  // in the compute type; undefined: there is no norm
  double norm_eps = 0;
};

// The rest of what is kept for a backward, undefined or without numbers where it is not wanted.
struct PhaseTwoResult {
  at::Tensor x = {};                     // h, or its norm
  at::Tensor normalized = {};            // h rho
  at::Tensor scores = {}, weights = {};  // [K, ...]
  at::Tensor earlier_weight = {};        // kappa [...]
  at::Tensor rho = {};                   // of the norm, [...]
};

// All but `normalized`. Also for Meta functions.
PhaseTwoResult allocate_phase_two(const at::Tensor& like, int64_t num_recent, bool has_earlier,
                                  bool has_norm, bool for_backward);

void phase_two_forward(const PhaseTwoInputs& inputs, const std::vector<InverseRms>& inverse_rms_K,
                       const PhaseTwoResult& result);

struct PhaseTwoGradients {
  at::Tensor earlier, sum;  // of o and ell; undefined if there was no phase 1
  at::Tensor scores;        // the sum of the recent scores', [...]; likewise
  at::Tensor query_D;
  at::Tensor norm_gain_D;  // undefined without a norm
};

// `inputs` has the recent sources, the query and the norm; `result` what was kept: x or
// `normalized`, and the rest. `grad_partial` is the last recent source's gradient from later sites,
// which is added to its target; undefined: none.
PhaseTwoGradients phase_two_backward(const PhaseTwoInputs& inputs, at::TensorList inverse_rms_K,
                                     bool has_earlier, const PhaseTwoResult& result,
                                     const at::Tensor& grad_x, const at::Tensor& grad_partial,
                                     const std::vector<GradientTarget>& grad_recent_K);

// The operations of both phases composed of tensor operations: any device, any floating dtype,
// differentiable any number of times. Returns o, m and ell of every site; and h.
std::tuple<std::vector<at::Tensor>, std::vector<at::Tensor>, std::vector<at::Tensor>>
depth_attention_phase_one_composed(at::TensorList sources, const at::Tensor& queries_SD,
                                   double eps);
at::Tensor depth_attention_phase_two_composed(const at::Tensor& earlier, const at::Tensor& max,
                                              const at::Tensor& sum, at::TensorList recent,
                                              const at::Tensor& query_D, double eps);

}  // namespace attnres
