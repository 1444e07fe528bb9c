#include "attnres/ops/depth_attention/depth_attention.h"
#include "attnres/ops/depth_attention/reference_sites.h"
#include "attnres/ops/depth_attention/two_phase.h"
#include "attnres/ops/operation_problems.h"

namespace attnres {
namespace {

using at::Tensor;
using problems::add_row;
using problems::joined;
using problems::Number;
using problems::row;
using problems::rows_at;
using problems::Tensors;
using problems::zeros_like;
using reference::Matrix;
using reference::Vector;

// A large constant of the norm, so that its term shows.
constexpr double kDepthEps = 1e-6, kSiteNormEps = 1;

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
    return {depth_attention(at::TensorList(in).slice(0, N), in[N], in[N + 1], kDepthEps)};
  };
  problem.reference = [N](const Tensors& in, const Tensors& gradients) {
    const Tensors results = zeros_like({in[0]}), grads = zeros_like(in);
    const Vector<Number> query = row(in[N], 0), gain = row(in[N + 1], 0), no_dalpha(N);
    for (int64_t t = 0; t < in[0].size(0); ++t) {
      const Matrix<Number> v = rows_at(in, 0, N, t);
      add_row(results[0], t, reference::depth_attention(v, query, gain, kDepthEps).h_D);
      const auto grad = reference::depth_attention_backward(v, query, gain, kDepthEps,
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
struct SiteGroup {
  size_t earlier, finished, sites;
  bool sums = true;
  int64_t tokens = 3, width = 37;
  double query_length = 3;

  size_t sources() const { return earlier + finished; }
  size_t outputs() const { return sites - 1; }
};

Tensors run_two_phase(const SiteGroup& group, const Tensors& in) {
  const size_t weights = group.sources() + group.outputs();
  std::vector<DepthSource> sources(in.begin(), in.begin() + static_cast<int64_t>(group.sources()));
  std::vector<DepthQuery> queries;
  for (size_t s = 0; s < group.sites; ++s) {
    queries.push_back({in[weights + 3 * s], in[weights + 3 * s + 1]});
  }
  std::vector<EarlierSources> earlier;
  if (group.earlier > 0)
    earlier = depth_attention_phase_one(sources, group.earlier, queries, kDepthEps);
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
    const SiteInput input = depth_attention_phase_two(site, queries[s], kDepthEps,
                                                      in[weights + 3 * s + 2], kSiteNormEps);
    partial = input.partial;
    xs.push_back(input.x);
  }
  return xs;
}

reference::Sites<Number> sites_at(const SiteGroup& group, const Tensors& in, int64_t token) {
  reference::Sites<Number> sites = {
      .sources_ND = rows_at(in, 0, group.sources(), token),
      .outputs_SD = rows_at(in, group.sources(), group.outputs(), token),
      .sums = group.sums,
      .query_SD = {},
      .key_gain_SD = {},
      .norm_gain_SD = {},
      .eps = kDepthEps,
      .norm_eps = kSiteNormEps};
  const size_t weights = group.sources() + group.outputs();
  for (size_t s = 0; s < group.sites; ++s) {
    sites.query_SD.push_back(row(in[weights + 3 * s], 0));
    sites.key_gain_SD.push_back(row(in[weights + 3 * s + 1], 0));
    sites.norm_gain_SD.push_back(row(in[weights + 3 * s + 2], 0));
  }
  return sites;
}

// Inputs: sources, outputs, and each site's query, key gain and norm gain. Results: every x.
OperationProblem two_phase_problem(const SiteGroup& group) {
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

// Scores far beyond what e^x can hold. 1e-6 (1 + max |score|), as scores are rounded.
constexpr double kLargeLength = 1000, kLargestScore = 5 * kLargeLength;
constexpr ErrorBounds kSaturated = {1e-6 * kLargestScore, 1e-15 * kLargestScore,
                                    1e-6 * kLargestScore + 4e-3};

OperationProblems depth_attention_of_all_shapes() {
  OperationProblems operation = {.name = "depth attention",
                                 .forward = {5e-6, 1e-14, 4e-3},
                                 .backward = ErrorBounds{1e-5, 2e-14, 8e-3},
                                 .large = depth_attention_problem(9, 600, 130, 3)};
  for (int64_t n = 1; n <= 33; ++n) {
    operation.problems.push_back(depth_attention_problem(n, 3, 37, 3));
  }
  for (const int64_t width : problems::kWidths) {
    operation.problems.push_back(depth_attention_problem(5, 4, width, 3));
  }
  for (const int64_t tokens : {1, 2, 7, 63, 130}) {
    operation.problems.push_back(depth_attention_problem(3, tokens, 33, 3));
  }
  return operation;
}

OperationProblems depth_attention_of_large_scores() {
  OperationProblems operation = {.name = "depth attention, large scores",
                                 .forward = kSaturated,
                                 .large = depth_attention_problem(9, 600, 130, kLargeLength)};
  for (const int64_t width : problems::kWidths) {
    operation.problems.push_back(depth_attention_problem(6, 5, width, kLargeLength));
  }
  return operation;
}

// Partial sums and o are rounded to the storage type. The gradients of queries are differences of
// sums over channels, whose every term has the rounding of the x from which the backward has h.
OperationProblems two_phase_of_all_shapes() {
  OperationProblems operation = {
      .name = "two-phase",
      .forward = {5e-6, 1e-14, 2e-2},
      .backward = ErrorBounds{3e-5, 6e-14, 2e-1},
      .large = two_phase_problem(
          {.earlier = 5, .finished = 1, .sites = 4, .tokens = 600, .width = 130})};
  for (const SiteGroup& group :
       {SiteGroup{.earlier = 1, .finished = 0, .sites = 1},
        SiteGroup{.earlier = 5, .finished = 0, .sites = 3},
        SiteGroup{.earlier = 3, .finished = 2, .sites = 4},
        SiteGroup{.earlier = 0, .finished = 1, .sites = 3},
        SiteGroup{.earlier = 2, .finished = 0, .sites = 9},
        SiteGroup{.earlier = 33, .finished = 0, .sites = 3},
        SiteGroup{.earlier = 13, .finished = 1, .sites = 5, .sums = false},
        SiteGroup{.earlier = 0, .finished = 2, .sites = 6, .sums = false}}) {
    operation.problems.push_back(two_phase_problem(group));
  }
  for (const int64_t width : problems::kWidths) {
    operation.problems.push_back(
        two_phase_problem({.earlier = 4, .finished = 1, .sites = 3, .width = width}));
  }
  return operation;
}

OperationProblems two_phase_of_large_scores() {
  const auto problem = [](int64_t tokens, int64_t width) {
    return two_phase_problem({.earlier = 14,
                              .finished = 1,
                              .sites = 3,
                              .sums = false,
                              .tokens = tokens,
                              .width = width,
                              .query_length = kLargeLength});
  };
  OperationProblems operation = {
      .name = "two-phase, large scores", .forward = kSaturated, .large = problem(300, 64)};
  for (const int64_t width : problems::kWidths) operation.problems.push_back(problem(3, width));
  return operation;
}

}  // namespace

std::vector<OperationProblems> depth_attention_problems() {
  return {depth_attention_of_all_shapes(), depth_attention_of_large_scores(),
          two_phase_of_all_shapes(), two_phase_of_large_scores()};
}

}  // namespace attnres
