#include "attnres/conformance/operation_problems.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "attnres/ops/depth_attention/depth_attention.h"
#include "attnres/ops/depth_attention/reference_sites.h"
#include "attnres/ops/depth_attention/two_phase.h"
#include "attnres/ops/gated_delta_rule/gated_delta_rule.h"
#include "attnres/ops/gated_delta_rule/reference.h"
#include "attnres/ops/rms_norm/rms_norm.h"
#include "attnres/ops/rotary/reference.h"
#include "attnres/ops/rotary/rotary.h"
#include "attnres/ops/swiglu/reference.h"
#include "attnres/ops/swiglu/swiglu.h"

namespace attnres {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;
using Number = long double;
using reference::Matrix;
using reference::Vector;

// A large constant of the norms, so that its terms show, and gradients of one channel are not zero.
constexpr double kEps = 1e-6, kNormEps = 1, kTheta = 10000;

// ---- Tokens of tensors as vectors, and back ----

Vector<Number> row(const Tensor& rows, int64_t token) {
  const int64_t width = rows.size(-1);
  const double* values = rows.data_ptr<double>() + token * width;
  return {values, values + width};
}

Matrix<Number> rows_at(const Tensors& tensors, size_t begin, size_t count, int64_t token) {
  Matrix<Number> all;
  for (size_t i = begin; i < begin + count; ++i) {
    all.push_back(row(tensors[i], tensors[i].dim() == 1 ? 0 : token));
  }
  return all;
}

// Of a tensor of one row (gains, queries) it is the only one.
void add_row(const Tensor& rows, int64_t token, const Vector<Number>& values) {
  const int64_t at = rows.dim() == 1 ? 0 : token;
  double* to = rows.data_ptr<double>() + at * rows.size(-1);
  for (size_t k = 0; k < values.size(); ++k) to[k] += static_cast<double>(values[k]);
}

Tensors zeros_like(const Tensors& tensors) {
  Tensors zeros;
  for (const Tensor& tensor : tensors) zeros.push_back(at::zeros_like(tensor));
  return zeros;
}

template <class T>
std::vector<T> joined(std::vector<T> list, const std::vector<T>& more) {
  list.insert(list.end(), more.begin(), more.end());
  return list;
}

// ---- The operations ----

const std::vector<int64_t> kWidths = {1,  2,  3,  5,  7,  8,   15,  16,  17,  31,
                                      32, 33, 63, 64, 65, 127, 128, 257, 2000};

// Inputs: sources, query, key gain.
OperationProblem depth_attention_problem(int64_t sources, int64_t tokens, int64_t width,
                                         double length) {
  DrawnInputs draw("depth attention");
  OperationProblem problem;
  for (int64_t n = 0; n < sources; ++n) problem.inputs.push_back(draw.rows({tokens, width}));
  problem.inputs.push_back(draw.query(width, length));
  problem.inputs.push_back(draw.gain(width));
  const auto N = static_cast<size_t>(sources);
  problem.compute = [N](const Tensors& in) -> Tensors {
    return {depth_attention(at::TensorList(in).slice(0, N), in[N], in[N + 1], kEps)};
  };
  problem.reference = [N](const Tensors& in, const Tensors& gradients) {
    const Tensors results = zeros_like({in[0]}), grads = zeros_like(in);
    const Vector<Number> query = row(in[N], 0), gain = row(in[N + 1], 0), no_dalpha(N);
    for (int64_t t = 0; t < in[0].size(0); ++t) {
      const Matrix<Number> v = rows_at(in, 0, N, t);
      add_row(results[0], t, reference::depth_attention(v, query, gain, kEps).h_D);
      const auto grad = reference::depth_attention_backward(v, query, gain, kEps,
                                                            row(gradients[0], t), no_dalpha);
      for (size_t n = 0; n < N; ++n) add_row(grads[n], t, grad.sources_ND[n]);
      add_row(grads[N], t, grad.query_D);
      add_row(grads[N + 1], t, grad.key_gain_D);
    }
    return joined(results, grads);
  };
  return problem;
}

// A group: phase 1 reads `earlier` sources, and its sites read `finished` more, and the outputs of
// the sublayers before them in the group: their sum, or each.
struct Group {
  size_t earlier, finished, sites;
  bool sums = true;
  int64_t tokens = 3, width = 37;
  double query_length = 3;

  size_t sources() const { return earlier + finished; }
  size_t outputs() const { return sites - 1; }
};

Tensors run_two_phase(const Group& group, const Tensors& in) {
  const size_t weights = group.sources() + group.outputs();
  std::vector<DepthSource> sources(in.begin(), in.begin() + static_cast<int64_t>(group.sources()));
  std::vector<DepthQuery> queries;
  for (size_t s = 0; s < group.sites; ++s) {
    queries.push_back({in[weights + 3 * s], in[weights + 3 * s + 1]});
  }
  std::vector<EarlierSources> earlier;
  if (group.earlier > 0) earlier = depth_attention_phase_one(sources, group.earlier, queries, kEps);
  Tensors xs;
  Tensor partial;
  for (size_t s = 0; s < group.sites; ++s) {
    const Tensor pending = s > 0 ? in[group.sources() + s - 1] : Tensor();
    if (!group.sums && s > 0) sources.emplace_back(pending);
    const SiteSources site = {.earlier = group.earlier > 0 ? &earlier[s] : nullptr,
                              .sources = &sources,
                              .first_recent = group.earlier,
                              .partial = partial,
                              .pending = group.sums ? pending : Tensor()};
    const SiteInput input =
        depth_attention_phase_two(site, queries[s], kEps, in[weights + 3 * s + 2], kNormEps);
    partial = input.partial;
    xs.push_back(input.x);
  }
  return xs;
}

reference::Sites<Number> sites_at(const Group& group, const Tensors& in, int64_t token) {
  reference::Sites<Number> sites = {
      .sources_ND = rows_at(in, 0, group.sources(), token),
      .outputs_SD = rows_at(in, group.sources(), group.outputs(), token),
      .sums = group.sums,
      .query_SD = {},
      .key_gain_SD = {},
      .norm_gain_SD = {},
      .eps = kEps,
      .norm_eps = kNormEps};
  const size_t weights = group.sources() + group.outputs();
  for (size_t s = 0; s < group.sites; ++s) {
    sites.query_SD.push_back(row(in[weights + 3 * s], 0));
    sites.key_gain_SD.push_back(row(in[weights + 3 * s + 1], 0));
    sites.norm_gain_SD.push_back(row(in[weights + 3 * s + 2], 0));
  }
  return sites;
}

// Inputs: sources, outputs, and each site's query, key gain and norm gain. Results: every x.
OperationProblem two_phase_problem(const Group& group) {
  DrawnInputs draw("two-phase");
  OperationProblem problem;
  for (size_t i = 0; i < group.sources() + group.outputs(); ++i) {
    problem.inputs.push_back(draw.rows({group.tokens, group.width}));
  }
  for (size_t s = 0; s < group.sites; ++s) {
    problem.inputs.push_back(draw.query(group.width, group.query_length));
    problem.inputs.push_back(draw.gain(group.width));
    problem.inputs.push_back(draw.gain(group.width));
  }
  problem.compute = [group](const Tensors& in) { return run_two_phase(group, in); };
  problem.reference = [group](const Tensors& in, const Tensors& gradients) {
    const Tensors results = zeros_like(Tensors(group.sites, in[0])), grads = zeros_like(in);
    for (int64_t t = 0; t < group.tokens; ++t) {
      const auto sites = sites_at(group, in, t);
      const auto x = reference::site_inputs(sites);
      const auto grad =
          reference::site_inputs_backward(sites, rows_at(gradients, 0, group.sites, t));
      size_t i = 0;
      for (const auto& source : grad.sources_ND) add_row(grads[i++], t, source);
      for (const auto& output : grad.outputs_SD) add_row(grads[i++], t, output);
      for (size_t s = 0; s < group.sites; ++s) {
        add_row(results[s], t, x[s]);
        add_row(grads[i++], t, grad.query_SD[s]);
        add_row(grads[i++], t, grad.key_gain_SD[s]);
        add_row(grads[i++], t, grad.norm_gain_SD[s]);
      }
    }
    return joined(results, grads);
  };
  return problem;
}

// Inputs: state, pending output, gain. Results: the norm of their sum, and the sum.
OperationProblem add_rms_norm_problem(int64_t tokens, int64_t width) {
  DrawnInputs draw("rms norm");
  OperationProblem problem;
  problem.inputs = {draw.rows({tokens, width}), draw.rows({tokens, width}), draw.gain(width)};
  problem.compute = [](const Tensors& in) -> Tensors {
    const AddedAndNormalized result = add_rms_norm(in[0], in[1], in[2], kNormEps);
    return {result.normalized, result.sum};
  };
  problem.reference = [](const Tensors& in, const Tensors& gradients) {
    const Tensors results = zeros_like({in[0], in[0]}), grads = zeros_like(in);
    for (int64_t t = 0; t < in[0].size(0); ++t) {
      Vector<Number> h = row(in[0], t);
      const Vector<Number> pending = row(in[1], t), gain = row(in[2], 0);
      for (size_t k = 0; k < h.size(); ++k) h[k] += pending[k];
      add_row(results[0], t, reference::rms_norm(h, gain, kNormEps));
      add_row(results[1], t, h);
      const auto grad = reference::rms_norm_backward(h, gain, kNormEps, row(gradients[0], t));
      for (const int summand : {0, 1}) {
        add_row(grads[summand], t, grad.h_D);
        add_row(grads[summand], t, row(gradients[1], t));
      }
      add_row(grads[2], t, grad.gain_D);
    }
    return joined(results, grads);
  };
  return problem;
}

// Inputs: gate, up.
OperationProblem swiglu_problem(int64_t tokens, int64_t width) {
  DrawnInputs draw("swiglu");
  OperationProblem problem;
  problem.inputs = {draw.normal({tokens, width}, 4), draw.rows({tokens, width})};
  problem.compute = [](const Tensors& in) -> Tensors { return {swiglu(in[0], in[1])}; };
  problem.reference = [](const Tensors& in, const Tensors& gradients) {
    const Tensors all = zeros_like({in[0], in[0], in[0]});
    const double *gate = in[0].data_ptr<double>(), *up = in[1].data_ptr<double>();
    const double* dy = gradients[0].data_ptr<double>();
    for (int64_t i = 0; i < in[0].numel(); ++i) {
      const auto grad = reference::swiglu_backward<Number>(gate[i], up[i], dy[i]);
      const Number values[] = {reference::swiglu<Number>(gate[i], up[i]), grad.gate, grad.up};
      for (int k = 0; k < 3; ++k) all[k].data_ptr<double>()[i] = static_cast<double>(values[k]);
    }
    return all;
  };
  return problem;
}

// Input: heads [1, tokens, 2, width].
OperationProblem rotary_problem(int64_t tokens, int64_t width) {
  constexpr int64_t kHeads = 2;
  DrawnInputs draw("rotary");
  OperationProblem problem;
  problem.inputs = {draw.rows({1, tokens, kHeads, width})};
  problem.compute = [=](const Tensors& in) -> Tensors {
    return {apply_rotary(
        in[0], rotary_table(0, tokens, rotary_frequencies(width, kTheta), in[0].scalar_type()))};
  };
  problem.reference = [](const Tensors& in, const Tensors& gradients) {
    const Tensors all = zeros_like({in[0], in[0]});
    for (int64_t i = 0; i < in[0].numel() / in[0].size(-1); ++i) {
      const int64_t token = i / kHeads;
      const auto position = static_cast<double>(token);
      add_row(all[0], i, reference::rotary(row(in[0], i), position, kTheta));
      add_row(all[1], i, reference::rotary(row(gradients[0], i), -position, kTheta));
    }
    return all;
  };
  return problem;
}

// One head of one sequence of [B, T, H, ...].
Tensor head_of(const Tensor& x, int64_t batch, int64_t head) {
  return x.select(0, batch).select(1, head);
}

Matrix<Number> matrix(const Tensor& rows) {
  return rows_at(rows.contiguous().unbind(0), 0, static_cast<size_t>(rows.size(0)), 0);
}

void add_matrix(const Tensor& rows, const Matrix<Number>& values) {
  for (size_t i = 0; i < values.size(); ++i) {
    const Tensor row = at::zeros({rows.size(1)}, rows.options());
    add_row(row, 0, values[i]);
    rows.select(0, static_cast<int64_t>(i)).add_(row);
  }
}

using DeltaRuleForm = GatedDeltaRuleOutput (*)(const GatedDeltaRuleInputs&);

// Inputs: q, k, v, the logarithm of the decay, beta, the state. Results: o, the state after.
OperationProblem delta_rule_problem(DeltaRuleForm form, int64_t tokens, int64_t key_width,
                                    int64_t value_width) {
  constexpr int64_t B = 2, H = 2;
  DrawnInputs draw("gated delta rule");
  const std::vector<int64_t> keys = {B, tokens, H, key_width};
  const Tensor q = draw.normal(keys, 1), k = draw.normal(keys, 1);
  OperationProblem problem;
  problem.inputs = {q,
                    k / k.norm(2, -1, /*keepdim=*/true),
                    draw.rows({B, tokens, H, value_width}),
                    -draw.normal(keys, 2).exp(),
                    draw.uniform({B, tokens, H}),
                    draw.rows({B, H, key_width, value_width})};
  problem.compute = [form](const Tensors& in) -> Tensors {
    const GatedDeltaRuleOutput output = form({in[0], in[1], in[2], in[3], in[4], in[5]});
    return {output.o, output.state};
  };
  problem.reference = [](const Tensors& in, const Tensors& gradients) {
    const Tensors results = zeros_like({in[2], in[5]}), grads = zeros_like(in);
    for (int64_t b = 0; b < B; ++b) {
      for (int64_t h = 0; h < H; ++h) {
        const auto rows = [&](const Tensor& x) { return head_of(x, b, h); };
        const reference::DeltaRuleInputs<Number> head = {.q_TK = matrix(rows(in[0])),
                                                         .k_TK = matrix(rows(in[1])),
                                                         .v_TV = matrix(rows(in[2])),
                                                         .log_decay_TK = matrix(rows(in[3])),
                                                         .beta_T = row(rows(in[4]).contiguous(), 0),
                                                         .state_KV = matrix(in[5][b][h])};
        const auto out = reference::gated_delta_rule(head);
        add_matrix(rows(results[0]), out.o_TV);
        add_matrix(results[1][b][h], out.state_KV);
        const auto grad = reference::gated_delta_rule_backward(head, matrix(rows(gradients[0])),
                                                               matrix(gradients[1][b][h]));
        add_matrix(rows(grads[0]), grad.q_TK);
        add_matrix(rows(grads[1]), grad.k_TK);
        add_matrix(rows(grads[2]), grad.v_TV);
        add_matrix(rows(grads[3]), grad.log_decay_TK);
        add_matrix(rows(grads[4]).unsqueeze(0), {grad.beta_T});
        add_matrix(grads[5][b][h], grad.state_KV);
      }
    }
    return joined(results, grads);
  };
  return problem;
}

OperationProblems delta_rule_problems(const char* name, DeltaRuleForm form,
                                      const ErrorBounds& forward,
                                      const std::optional<ErrorBounds>& backward) {
  OperationProblems operation = {.name = name,
                                 .forward = forward,
                                 .backward = backward,
                                 .problems = {},
                                 .large = delta_rule_problem(form, 300, 64, 130)};
  for (const int64_t width : {1, 2, 3, 7, 16, 17, 33, 64, 65}) {
    operation.problems.push_back(delta_rule_problem(form, 5, width, width));
  }
  for (const int64_t width : {1, 31, 127, 130}) {
    operation.problems.push_back(delta_rule_problem(form, 3, 5, width));
  }
  for (const int64_t tokens : {1, 2, 31, 32, 33, 64, 70}) {
    operation.problems.push_back(delta_rule_problem(form, tokens, 6, 9));
  }
  return operation;
}

}  // namespace

Tensor DrawnInputs::normal(at::IntArrayRef shape, double scale) {
  return fill(shape, [&](uint64_t i) { return scale * random_.normal(i); });
}

Tensor DrawnInputs::uniform(at::IntArrayRef shape) {
  return fill(shape, [&](uint64_t i) { return random_.uniform(i); });
}

Tensor DrawnInputs::rows(at::IntArrayRef shape) {
  return normal(shape, 1.5);
}

Tensor DrawnInputs::gain(int64_t width) {
  return fill({width}, [&](uint64_t i) { return 0.5 + random_.uniform(i); });
}

Tensor DrawnInputs::query(int64_t width, double length) {
  const Tensor query = normal({width}, 1);
  return query * (length / std::max(1e-3, query.norm().item<double>()));
}

Tensor DrawnInputs::fill(at::IntArrayRef shape, const std::function<double(uint64_t)>& value) {
  Tensor tensor = at::empty(shape, at::kDouble);
  double* values = tensor.data_ptr<double>();
  for (int64_t i = 0; i < tensor.numel(); ++i) values[i] = value(counter_++);
  return tensor;
}

std::vector<OperationProblems> all_operation_problems() {
  OperationProblems single = {.name = "depth attention",
                              .forward = {5e-6, 1e-14, 4e-3},
                              .backward = ErrorBounds{1e-5, 2e-14, 8e-3},
                              .problems = {},
                              .large = depth_attention_problem(9, 600, 130, 3)};
  for (int64_t n = 1; n <= 33; ++n) {
    single.problems.push_back(depth_attention_problem(n, 3, 37, 3));
  }
  for (const int64_t width : kWidths) {
    single.problems.push_back(depth_attention_problem(5, 4, width, 3));
  }
  for (const int64_t tokens : {1, 2, 7, 63, 130}) {
    single.problems.push_back(depth_attention_problem(3, tokens, 33, 3));
  }

  // Partial sums and o are rounded to the storage type. The gradients of queries are differences of
  // sums over channels, whose every term has the rounding of the x from which the backward has h.
  OperationProblems two_phase = {
      .name = "two-phase",
      .forward = {5e-6, 1e-14, 2e-2},
      .backward = ErrorBounds{3e-5, 6e-14, 2e-1},
      .problems = {},
      .large = two_phase_problem(
          {.earlier = 5, .finished = 1, .sites = 4, .tokens = 600, .width = 130})};
  for (const Group& group : {Group{.earlier = 1, .finished = 0, .sites = 1},
                             Group{.earlier = 5, .finished = 0, .sites = 3},
                             Group{.earlier = 3, .finished = 2, .sites = 4},
                             Group{.earlier = 0, .finished = 1, .sites = 3},
                             Group{.earlier = 2, .finished = 0, .sites = 9},
                             Group{.earlier = 33, .finished = 0, .sites = 3},
                             Group{.earlier = 13, .finished = 1, .sites = 5, .sums = false},
                             Group{.earlier = 0, .finished = 2, .sites = 6, .sums = false}}) {
    two_phase.problems.push_back(two_phase_problem(group));
  }
  for (const int64_t width : kWidths) {
    two_phase.problems.push_back(
        two_phase_problem({.earlier = 4, .finished = 1, .sites = 3, .width = width}));
  }

  // Scores far beyond what e^x can hold. 1e-6 (1 + max |score|), as scores are rounded.
  constexpr double kLength = 1000, kLargest = 5 * kLength;
  const ErrorBounds saturated = {1e-6 * kLargest, 1e-15 * kLargest, 1e-6 * kLargest + 4e-3};
  OperationProblems large_scores = {.name = "two-phase, large scores",
                                    .forward = saturated,
                                    .backward = {},
                                    .problems = {},
                                    .large = two_phase_problem({.earlier = 14,
                                                                .finished = 1,
                                                                .sites = 3,
                                                                .sums = false,
                                                                .tokens = 300,
                                                                .width = 64,
                                                                .query_length = kLength})};
  OperationProblems large_scores_single = {.name = "depth attention, large scores",
                                           .forward = saturated,
                                           .backward = {},
                                           .problems = {},
                                           .large = depth_attention_problem(9, 600, 130, kLength)};
  for (const int64_t width : kWidths) {
    large_scores_single.problems.push_back(depth_attention_problem(6, 5, width, kLength));
    large_scores.problems.push_back(two_phase_problem({.earlier = 14,
                                                       .finished = 1,
                                                       .sites = 3,
                                                       .sums = false,
                                                       .width = width,
                                                       .query_length = kLength}));
  }

  const auto elementary = [](const char* name, const std::vector<int64_t>& widths,
                             OperationProblem (*make)(int64_t, int64_t), const ErrorBounds& forward,
                             const ErrorBounds& backward) {
    OperationProblems operation = {.name = name,
                                   .forward = forward,
                                   .backward = backward,
                                   .problems = {},
                                   .large = make(700, 130)};
    for (const int64_t width : widths) operation.problems.push_back(make(5, width));
    return operation;
  };
  std::vector<int64_t> even = {2, 4, 6, 14, 16, 32, 34, 64, 66, 128, 256};
  const ErrorBounds tight = {2e-6, 4e-15, 8e-3};
  std::vector<OperationProblems> all;
  all.push_back(std::move(single));
  all.push_back(std::move(large_scores_single));
  all.push_back(std::move(two_phase));
  all.push_back(std::move(large_scores));
  all.push_back(elementary("addition and RMSNorm", kWidths, add_rms_norm_problem, tight, tight));
  all.push_back(elementary("SwiGLU", kWidths, swiglu_problem, tight, tight));
  all.push_back(elementary("rotary", even, rotary_problem, tight, tight));
  // Without a gradient there is the kernel.
  const ErrorBounds of_state = {4e-6, 1e-14, 8e-3};
  all.push_back(delta_rule_problems("gated delta rule", gated_delta_rule, of_state, {}));
  all.push_back(delta_rule_problems("gated delta rule by chunks", gated_delta_rule_chunked,
                                    of_state, of_state));
  return all;
}

}  // namespace attnres
