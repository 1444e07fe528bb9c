// What is computed on a GPU, in which launches: the operations of kernel.h and kernel_phase_two.h,
// whose arrays of pointers are on the host and the rest on the device. A Launcher launches, on a
// GPU or in tests on the host:
//
//   int64_t shared_bytes()                         that a block may have
//   void launch<Kernel>(const Kernel::Operation&)
#pragma once

#include <algorithm>

#include "attnres/ops/cuda_sums.h"
#include "attnres/ops/depth_attention/cuda_one_source.h"
#include "attnres/ops/depth_attention/cuda_phase_one_backward.h"
#include "attnres/ops/depth_attention/cuda_phase_two.h"
#include "attnres/ops/depth_attention/cuda_phase_two_backward.h"
#include "attnres/ops/depth_attention/kernel.h"
#include "attnres/ops/depth_attention/kernel_phase_two.h"

namespace attnres::gpu {

template <class Storage>
TokenRows<Storage> rows_of(int64_t tokens, int64_t width, const Storage* const* sources,
                           int64_t n) {
  TokenRows<Storage> rows{.tokens = tokens,
                          .width = static_cast<int>(width),
                          .num_fixed = 0,
                          .num_sources = static_cast<int>(n),
                          .row_floats = 0,
                          .stage_rows = 0,
                          .buffers = 0,
                          .fixed = {},
                          .sources = {}};
  std::copy_n(sources, n, rows.sources);
  return rows;
}

// Where the gradient of source n goes, with these members of a backward of kernel.h.
template <class Storage>
GradientRow<Storage> gradient_row(Storage* const* gradients, float* const* sums,
                                  const bool* accumulate, int64_t n) {
  const bool in_sums = sums != nullptr && sums[n] != nullptr;
  return {in_sums ? static_cast<void*>(sums[n]) : gradients[n],
          in_sums || sizeof(Storage) == sizeof(float), accumulate[n]};
}

// Those below return false, having launched nothing, where there is no kernel: another width, more
// sources, rows that don't fit into shared memory. Queries, statistics and `sums` are float32.

// Phase 1.
template <class Storage, class Launcher>
bool phase_one_forward(const kernel::DepthAttentionForward<Storage>& op, const Launcher& launcher) {
  const auto& in = op.inputs;
  const int64_t N = in.num_sources, T = in.num_tokens, D = in.width;
  if (!has_width(D) || N > kMostSources) return false;
  PhaseOneForward<Storage> all{.rows = rows_of(T, D, in.sources_N, N),
                               .num_sites = 0,
                               .queries = nullptr,
                               .eps = static_cast<float>(op.eps),
                               .inverse_rms = {},
                               .rms_known = {},
                               .outputs = {},
                               .max = nullptr,
                               .sum = nullptr,
                               .scores = nullptr,
                               .weights = nullptr};
  std::copy_n(op.inverse_rms_N, N, all.inverse_rms);
  std::copy_n(op.rms_known_N, N, all.rms_known);
  bool done = true;
  with_vectors<kNumbers<Storage>, 1>(static_cast<int>(D), [&](auto vectors) {
    using Kernel = PhaseOneForwardKernel<Storage, decltype(vectors)::value>;
    done = fit<Kernel>(all, launcher.shared_bytes());
    for (int64_t s = 0; s < in.num_sites && done; s += Kernel::kSites) {
      all.num_sites = static_cast<int>(std::min<int64_t>(in.num_sites - s, Kernel::kSites));
      all.queries = in.folded_queries_SD + s * D;
      std::copy_n(op.outputs_S + s, all.num_sites, all.outputs);
      all.max = op.max_ST + s * T;
      all.sum = op.sum_ST + s * T;
      all.scores = op.scores_SNT == nullptr ? nullptr : op.scores_SNT + s * N * T;
      all.weights = op.weights_SNT == nullptr ? nullptr : op.weights_SNT + s * N * T;
      launcher.template launch<Kernel>(all);
    }
  });
  return done;
}

// Its backward; the queries' gradients [S, D] are written. Memory: runs_of_tokens(T, D) S D floats.
template <class Storage, class Launcher>
bool phase_one_backward(const kernel::DepthAttentionBackward<Storage>& op, float* memory,
                        float* grad_queries_SD, const Launcher& launcher) {
  const auto& in = op.inputs;
  const int64_t N = in.num_sources, T = in.num_tokens, D = in.width;
  if (!has_width(D) || N > kMostSources) return false;
  PhaseOneBackward<Storage> all{};
  all.rows = rows_of(T, D, in.sources_N, N);
  std::copy_n(op.inverse_rms_N, N, all.inverse_rms);
  for (int64_t n = 0; n < N; ++n) {
    all.gradients[n] = gradient_row(op.grad_sources_N, op.grad_sums_N, op.accumulate_N, n);
  }
  const auto row = [](const float* rows, int64_t at) { return rows == nullptr ? rows : rows + at; };
  bool done = true;
  with_vectors<4, 1>(static_cast<int>(D), [&](auto vectors) {
    using Kernel = PhaseOneBackwardKernel<Storage, decltype(vectors)::value>;
    for (int64_t s = 0; s < in.num_sites; s += Kernel::kSites) {
      const int sites = static_cast<int>(std::min<int64_t>(in.num_sites - s, Kernel::kSites));
      all.rows.num_fixed = sites;
      all.all_in_sums = std::all_of(all.gradients, all.gradients + N, [](const auto& gradient) {
        return gradient.rows != nullptr && gradient.in_float && gradient.accumulate;
      });
      done = fit<Kernel>(all, launcher.shared_bytes());
      if (!done) break;
      std::copy_n(op.grad_outputs_S + s, sites, all.rows.fixed);
      all.queries = in.folded_queries_SD + s * D;
      all.scores = op.scores_SNT + s * N * T;
      all.weights = op.weights_SNT + s * N * T;
      all.grad_sum = row(op.grad_sum_ST, s * T);
      all.other_grad_scores = row(op.other_grad_scores_ST, s * T);
      all.sums = memory;
      launcher.template launch<Kernel>(all);
      add_runs(memory, runs_of_tokens(T, D), sites * D, grad_queries_SD + s * D, launcher);
      for (int64_t n = 0; n < N; ++n) all.gradients[n].accumulate = true;
    }
  });
  return done;
}

template <class Storage, class Launcher>
bool launch_phase_two(PhaseTwoForward<Storage>& op, const Launcher& launcher) {
  bool done = true;
  with_vectors<kNumbers<Storage>, 2>(op.rows.width, [&](auto vectors) {
    using OneSource = OneSourceForwardKernel<Storage, decltype(vectors)::value>;
    if (OneSource::has(op)) return launcher.template launch<OneSource>(op);
    using Kernel = PhaseTwoForwardKernel<Storage, decltype(vectors)::value>;
    done = fit<Kernel>(op, launcher.shared_bytes());
    if (done) launcher.template launch<Kernel>(op);
  });
  return done;
}

// Phase 2.
template <class Storage, class Launcher>
bool phase_two_forward(const kernel::PhaseTwoForward<Storage>& op, const Launcher& launcher) {
  const bool formed = op.pending_TD != nullptr;
  const int64_t K = op.num_recent, N = formed ? K - 1 : K;
  if (!has_width(op.width) || N > kMostSources) return false;
  PhaseTwoForward<Storage> all{.rows = rows_of(op.num_tokens, op.width, op.recent_K, N),
                               .formed = formed,
                               .has_earlier = op.earlier_TD != nullptr,
                               .max = op.max_T,
                               .sum = op.sum_T,
                               .formed_sum = op.sum_TD,
                               .query = op.folded_query_D,
                               .eps = static_cast<float>(op.eps),
                               .gain = op.gain_D,
                               .norm_eps = static_cast<float>(op.norm_eps),
                               .inverse_rms = {},
                               .rms_known = {},
                               .x = op.x_TD,
                               .normalized = op.normalized_TD,
                               .scores = op.scores_KT,
                               .weights = op.weights_KT,
                               .earlier_weight = op.earlier_weight_T,
                               .rho = op.rho_T};
  std::copy_n(op.inverse_rms_K, K, all.inverse_rms);
  std::copy_n(op.rms_known_K, K, all.rms_known);
  if (formed) all.rows.add_fixed(op.partial_TD);
  all.rows.add_fixed(op.pending_TD);
  all.rows.add_fixed(op.earlier_TD);
  return launch_phase_two(all, launcher);
}

// The whole of depth attention at one site.
template <class Storage, class Launcher>
bool depth_attention_forward(const kernel::DepthAttentionForward<Storage>& op,
                             const Launcher& launcher) {
  const auto& in = op.inputs;
  return phase_two_forward<Storage>({.num_recent = in.num_sources,
                                     .num_tokens = in.num_tokens,
                                     .width = in.width,
                                     .earlier_TD = nullptr,
                                     .max_T = nullptr,
                                     .sum_T = nullptr,
                                     .recent_K = in.sources_N,
                                     .partial_TD = nullptr,
                                     .pending_TD = nullptr,
                                     .sum_TD = nullptr,
                                     .folded_query_D = in.folded_queries_SD,
                                     .eps = op.eps,
                                     .gain_D = nullptr,
                                     .norm_eps = 0,
                                     .inverse_rms_K = op.inverse_rms_N,
                                     .rms_known_K = op.rms_known_N,
                                     .x_TD = op.outputs_S[0],
                                     .normalized_TD = nullptr,
                                     .scores_KT = op.scores_SNT,
                                     .weights_KT = op.weights_SNT,
                                     .earlier_weight_T = nullptr,
                                     .rho_T = nullptr},
                                    launcher);
}

// Launches, and adds up the runs' sums [1 or 2, D] into `sums`.
template <class Storage, class Launcher>
bool launch_phase_two_backward(PhaseTwoBackward<Storage>& op, float* memory, float* sums,
                               const Launcher& launcher) {
  bool done = true;
  op.sums = memory;
  with_vectors<kNumbers<Storage>, 2>(op.rows.width, [&](auto vectors) {
    using OneSource = OneSourceBackwardKernel<Storage, decltype(vectors)::value>;
    if (OneSource::has(op)) return launcher.template launch<OneSource>(op);
    using Kernel = PhaseTwoBackwardKernel<Storage, decltype(vectors)::value>;
    done = fit<Kernel>(op, launcher.shared_bytes());
    if (done) launcher.template launch<Kernel>(op);
  });
  const int64_t columns = (op.gain != nullptr ? 2 : 1) * op.rows.width;
  if (done) {
    add_runs(memory, runs_of_tokens(op.rows.tokens, op.rows.width), columns, sums, launcher);
  }
  return done;
}

// The gradients of the query [D] and, where there is a norm, of its gain [D] are written to `sums`.
// Memory: runs_of_tokens(T, D) times as many floats. A factor of null is one.
template <class Storage, class Launcher>
bool phase_two_backward(const kernel::PhaseTwoBackward<Storage>& op, float* memory, float* sums,
                        const Launcher& launcher) {
  const int64_t K = op.num_recent;
  if (!has_width(op.width) || K > kMostSources) return false;
  PhaseTwoBackward<Storage> all{};
  all.rows = rows_of(op.num_tokens, op.width, op.recent_K, K);
  all.has_kept = true;
  all.has_arriving = op.grad_sum_TD != nullptr;
  all.query = op.folded_query_D;
  all.gain = op.gain_D;
  all.kept_factor = op.kept_factor_D;
  all.norm_eps = static_cast<float>(op.norm_eps);
  std::copy_n(op.inverse_rms_K, K, all.inverse_rms);
  all.scores = op.scores_KT;
  all.weights = op.weights_KT;
  all.earlier_weight = op.grad_earlier_TD == nullptr ? nullptr : op.earlier_weight_T;
  all.rho = op.rho_T;
  all.grad_earlier = op.grad_earlier_TD;
  all.grad_sum = op.grad_sum_T;
  all.grad_scores = op.grad_scores_T;
  for (int64_t k = 0; k < K; ++k) {
    all.gradients[k] = gradient_row(op.grad_recent_K, op.grad_sums_K, op.accumulate_K, k);
  }
  all.rows.add_fixed(op.grad_x_TD);
  all.rows.add_fixed(op.kept_TD);
  all.rows.add_fixed(op.grad_sum_TD);
  return launch_phase_two_backward(all, memory, sums, launcher);
}

template <class Storage, class Launcher>
bool depth_attention_backward(const kernel::DepthAttentionBackward<Storage>& op, float* memory,
                              float* grad_query_D, const Launcher& launcher) {
  const auto& in = op.inputs;
  const int64_t N = in.num_sources;
  if (!has_width(in.width) || N > kMostSources) return false;
  PhaseTwoBackward<Storage> all{};
  all.rows = rows_of(in.num_tokens, in.width, in.sources_N, N);
  all.rows.add_fixed(op.grad_outputs_S[0]);
  all.query = in.folded_queries_SD;
  std::copy_n(op.inverse_rms_N, N, all.inverse_rms);
  all.scores = op.scores_SNT;
  all.weights = op.weights_SNT;
  all.grad_weights = op.grad_weights_SNT;
  for (int64_t n = 0; n < N; ++n) {
    all.gradients[n] = gradient_row(op.grad_sources_N, op.grad_sums_N, op.accumulate_N, n);
  }
  return launch_phase_two_backward(all, memory, grad_query_D, launcher);
}

}  // namespace attnres::gpu
