// Both phases as operations of the dispatcher that fill tensors which their caller made. They know
// nothing of autograd; a device replaces the four of them, and everything else calls these:
//
//   attnres::depth_attention_phase_one_out    attnres::depth_attention_phase_one_backward_out
//   attnres::depth_attention_phase_two_out    attnres::depth_attention_phase_two_backward_out
//
// The kernels' headers have the formulas. Rows are [..., D], of one shape and dtype, and what is
// written is contiguous. Queries are folded, pseudo-query times key gain; they and all statistics
// are in the compute type.
#pragma once

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

namespace attnres {

// Sources, and 1 / RMS of the first of them, [...] each: those that are known are read, the others
// written. Of sources beyond it is not wanted.
struct SourceRows {
  at::TensorList values;
  at::TensorList inverse_rms = {};
  int64_t num_known = 0;
};

// Where the gradients of sources go: in their dtype, or in the compute type. Without numbers: not
// wanted.
struct GradientTargets {
  std::vector<at::Tensor> gradients;
  c10::List<bool> accumulate;  // else they are overwritten
};

struct PhaseOneInputs {
  SourceRows sources;     // N
  at::Tensor queries_SD;  // of S sites
  double eps;
};

// What phase 1 leaves for its sites.
struct PhaseOneResult {
  std::vector<at::Tensor> outputs;  // o of each site
  at::Tensor max, sum;              // m and ell, [S, ...]
  at::Tensor scores, weights;       // [S N, ...]; undefined: there is no backward
};

PhaseOneResult allocate_phase_one(const at::Tensor& like, int64_t num_sources, int64_t num_sites,
                                  bool for_backward);
void phase_one_out(const PhaseOneInputs& inputs, const PhaseOneResult& result);

// What phase 2 tells of the rest of the softmax is one of the two (kernel.h).
struct PhaseOneBackwardInputs {
  at::TensorList sources, inverse_rms;  // N
  at::Tensor queries_SD, scores, weights;
  at::TensorList grad_outputs;        // S
  at::Tensor grad_sum = {};           // of ell, [S, ...]
  at::Tensor other_grad_scores = {};  // the sum of the recent scores' gradients, [S, ...]
  GradientTargets targets;
};

// The queries' gradients [S, D]; the sources' go to their targets.
at::Tensor phase_one_backward_out(const PhaseOneBackwardInputs& inputs);

// What a site reads, and the norm after it. Its max, sum and query are a row of theirs.
struct PhaseTwoInputs {
  at::Tensor earlier = {}, max = {}, sum = {};  // of phase 1; undefined: there was none
  SourceRows recent;                      // K; the last is written where it is the sum of two parts
  at::Tensor partial = {}, pending = {};  // the parts; both or neither
  at::Tensor queries_SD;
  int64_t row = 0;
  double eps;
  at::Tensor norm_gain_D = {};  // prepare_norm_gain's; undefined: there is no norm
  double norm_eps = 0;
};

// All but x is undefined where there is no backward.
struct PhaseTwoResult {
  at::Tensor x;                    // h, or its norm
  at::Tensor scores, weights;      // [K, ...]
  at::Tensor earlier_weight = {};  // kappa [...]; undefined without phase 1
  at::Tensor rho = {};             // [...]; undefined without a norm
};

PhaseTwoResult allocate_phase_two(const at::Tensor& like, int64_t num_recent, bool has_earlier,
                                  bool has_norm, bool for_backward);

// A norm's gain as phase 2 takes it, in the compute type of rows. Where there will be a backward it
// is 1e-20 more: the same number, but where it was zero or nearly so. Then h rho = x / gain, and a
// backward needs no other rows. An undefined gain stays so.
at::Tensor prepare_norm_gain(const at::Tensor& gain, const at::Tensor& rows, bool for_backward);

void phase_two_out(const PhaseTwoInputs& inputs, const PhaseTwoResult& result);

struct PhaseTwoBackwardInputs {
  at::Tensor grad_x;
  at::Tensor grad_partial = {};  // the last recent source's, from later sites; undefined: none
  at::Tensor x;                  // which phase 2 gave
  at::TensorList recent, inverse_rms;  // K
  at::Tensor query_D, norm_gain_D = {};
  double norm_eps = 0;
  at::Tensor scores, weights, earlier_weight = {}, rho = {};
  GradientTargets targets;
};

struct PhaseTwoGradients {
  at::Tensor earlier = {}, sum = {};  // of o and ell; undefined if there was no phase 1
  at::Tensor scores = {};             // the sum of the recent scores', [...]; likewise
  at::Tensor query_D = {};
  at::Tensor norm_gain_D = {};  // undefined without a norm
};

// Those of a token: the first three.
PhaseTwoGradients allocate_phase_two_gradients(const PhaseTwoBackwardInputs& inputs);

// The recent sources' go to their targets.
PhaseTwoGradients phase_two_backward_out(const PhaseTwoBackwardInputs& inputs);

// ---- What records them ----

// Give results that were computed a history, and return them: o of every site and ell; x and, where
// it has parts, the partial sum. In the model's schedule gradients of sources go to their slots
// (gradient_slot.h), and along the edge of ell goes the sum of the recent scores' gradients, of a
// site whose rows of max, sum and queries are [1, ...]. Otherwise all are ordinary ones, and those
// operations of the dispatcher compute them whose results are new tensors.
std::vector<at::Tensor> record_phase_one(at::TensorList sources, const at::Tensor& queries_SD,
                                         const std::vector<at::Tensor>& inverse_rms,
                                         const PhaseOneResult& result, bool in_schedule);

// The last recent source is the sum of the parts, where there are some. The gain is in its own
// dtype.
std::vector<at::Tensor> record_phase_two(const PhaseTwoInputs& inputs, at::TensorList parts,
                                         const std::optional<at::Tensor>& norm_gain,
                                         const PhaseTwoResult& result, bool in_schedule);

// ---- What computes them ----

// By kernels; dtypes that have none by the fallback.
void phase_one_cpu(const PhaseOneInputs& inputs, const PhaseOneResult& result);
at::Tensor phase_one_backward_cpu(const PhaseOneBackwardInputs& inputs);
void phase_two_cpu(const PhaseTwoInputs& inputs, const PhaseTwoResult& result);
PhaseTwoGradients phase_two_backward_cpu(const PhaseTwoBackwardInputs& inputs);

// By tensor operations: any device, any floating dtype.
void phase_one_fallback(const PhaseOneInputs& inputs, const PhaseOneResult& result);
at::Tensor phase_one_backward_fallback(const PhaseOneBackwardInputs& inputs);
void phase_two_fallback(const PhaseTwoInputs& inputs, const PhaseTwoResult& result);
PhaseTwoGradients phase_two_backward_fallback(const PhaseTwoBackwardInputs& inputs);

// Without a backward of ours: differentiable any number of times. Returns o, m and ell of every
// site; and h.
std::tuple<std::vector<at::Tensor>, std::vector<at::Tensor>, std::vector<at::Tensor>>
depth_attention_phase_one_composed(at::TensorList sources, const at::Tensor& queries_SD,
                                   double eps);
// `max` and `sum` go with `earlier`, which is undefined where there was no phase 1; h is in the
// compute type.
at::Tensor depth_attention_phase_two_composed(const at::Tensor& earlier, const at::Tensor& max,
                                              const at::Tensor& sum, at::TensorList recent,
                                              const at::Tensor& query_D, double eps);

// The functions of these that a device registers: m.impl("depth_attention_phase_one_out",
// &call_phase_one<phase_one_cpu>).

using OptionalTensor = std::optional<at::Tensor>;

template <void (*phase_one)(const PhaseOneInputs&, const PhaseOneResult&)>
void call_phase_one(at::TensorList sources, at::TensorList inverse_rms, int64_t num_known,
                    const at::Tensor& queries, double eps, at::TensorList outputs,
                    const at::Tensor& max, const at::Tensor& sum, const OptionalTensor& scores,
                    const OptionalTensor& weights) {
  phase_one(
      {{sources, inverse_rms, num_known}, queries, eps},
      {outputs.vec(), max, sum, scores.value_or(at::Tensor()), weights.value_or(at::Tensor())});
}

template <at::Tensor (*phase_one_backward)(const PhaseOneBackwardInputs&)>
at::Tensor call_phase_one_backward(at::TensorList sources, at::TensorList inverse_rms,
                                   const at::Tensor& queries, const at::Tensor& scores,
                                   const at::Tensor& weights, at::TensorList grad_outputs,
                                   const OptionalTensor& grad_sum,
                                   const OptionalTensor& other_grad_scores,
                                   at::TensorList grad_sources, const c10::List<bool>& accumulate) {
  return phase_one_backward({sources,
                             inverse_rms,
                             queries,
                             scores,
                             weights,
                             grad_outputs,
                             grad_sum.value_or(at::Tensor()),
                             other_grad_scores.value_or(at::Tensor()),
                             {grad_sources.vec(), accumulate}});
}

template <void (*phase_two)(const PhaseTwoInputs&, const PhaseTwoResult&)>
void call_phase_two(const OptionalTensor& earlier, const OptionalTensor& max,
                    const OptionalTensor& sum, at::TensorList recent, at::TensorList inverse_rms,
                    int64_t num_known, const OptionalTensor& partial, const OptionalTensor& pending,
                    const at::Tensor& queries, int64_t row, double eps,
                    const OptionalTensor& norm_gain, double norm_eps, const at::Tensor& x,
                    const OptionalTensor& scores, const OptionalTensor& weights,
                    const OptionalTensor& earlier_weight, const OptionalTensor& rho) {
  const at::Tensor none;
  phase_two({earlier.value_or(none),
             max.value_or(none),
             sum.value_or(none),
             {recent, inverse_rms, num_known},
             partial.value_or(none),
             pending.value_or(none),
             queries,
             row,
             eps,
             norm_gain.value_or(none),
             norm_eps},
            {x, scores.value_or(none), weights.value_or(none), earlier_weight.value_or(none),
             rho.value_or(none)});
}

template <PhaseTwoGradients (*phase_two_backward)(const PhaseTwoBackwardInputs&)>
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> call_phase_two_backward(
    const at::Tensor& grad_x, const OptionalTensor& grad_partial, const at::Tensor& x,
    at::TensorList recent, at::TensorList inverse_rms, const at::Tensor& query,
    const OptionalTensor& norm_gain, double norm_eps, const at::Tensor& scores,
    const at::Tensor& weights, const OptionalTensor& earlier_weight, const OptionalTensor& rho,
    at::TensorList grad_recent, const c10::List<bool>& accumulate) {
  const at::Tensor none;
  const PhaseTwoGradients gradients = phase_two_backward({grad_x,
                                                          grad_partial.value_or(none),
                                                          x,
                                                          recent,
                                                          inverse_rms,
                                                          query,
                                                          norm_gain.value_or(none),
                                                          norm_eps,
                                                          scores,
                                                          weights,
                                                          earlier_weight.value_or(none),
                                                          rho.value_or(none),
                                                          {grad_recent.vec(), accumulate}});
  return {gradients.earlier, gradients.sum, gradients.scores, gradients.query_D,
          gradients.norm_gain_D};
}

}  // namespace attnres
