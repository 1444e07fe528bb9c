#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>

#include "attnres/ops/depth_scores/depth_scores.h"
#include "attnres/ops/operation_problems.h"

namespace attnres {
namespace {

using at::Tensor;
using problems::Tensors;

constexpr double kKeyEps = 1e-2;  // large, so that its term shows

struct WeighedSources {
  int64_t heads, head_width;
  DepthWeighing weighing = DepthWeighing::softmax;
  bool query_by_token = true, normalised_keys = true;
  int64_t tokens = 6;

  // Its place among the inputs, after the query and, where keys are normalised, their gain.
  size_t first_source() const { return normalised_keys ? 2 : 1; }
};

Tensors run_depth_scores(const WeighedSources& s, const Tensors& in) {
  const at::TensorList sources = at::TensorList(in).slice(s.first_source());
  const Tensor scores = depth_scores(sources, {.query = in[0],
                                               .key_gain = s.normalised_keys ? in[1] : Tensor(),
                                               .eps = kKeyEps,
                                               .heads = s.heads,
                                               .weighing = s.weighing});
  return {scores, weighted_sum(sources, weigh_scores(scores, s.weighing))};
}

Tensors depth_scores_formula(const WeighedSources& s, const Tensors& in) {
  const bool factorised = s.weighing == DepthWeighing::factorised;
  const auto feature = [&](const Tensor& x) {
    return factorised ? at::where(x > 0, x + 1, x.clamp_max(0).exp()) : x;
  };
  const auto by_head = [&](const Tensor& x) { return x.unflatten(-1, {s.heads, -1}); };
  Tensors all_scores;
  for (size_t n = s.first_source(); n < in.size(); ++n) {
    const Tensor key = s.normalised_keys
                           ? in[1] * in[n] / (in[n].square().mean(-1, true) + kKeyEps).sqrt()
                           : in[n];
    all_scores.push_back(by_head(feature(in[0]) * feature(key)).sum(-1));
  }
  const Tensor scores = at::stack(all_scores);
  const Tensor weights = factorised                             ? scores / scores.sum(0)
                         : s.weighing == DepthWeighing::softmax ? scores.softmax(0)
                                                                : scores.sigmoid();
  Tensor sum = at::zeros_like(in.back());
  for (size_t n = s.first_source(); n < in.size(); ++n) {
    const Tensor weight = weights[static_cast<int64_t>(n - s.first_source())].unsqueeze(-1);
    sum = sum + (by_head(in[n]) * weight).flatten(-2);
  }
  return {scores, sum};
}

// Inputs: the query, the keys' gain, the sources. Results: scores, and the sum that they weigh.
OperationProblem depth_scores_problem(const WeighedSources& s) {
  constexpr int kSources = 3;
  constexpr double kLength = 3;
  DrawnInputs draw("depth scores");
  const int64_t D = s.heads * s.head_width;
  OperationProblem problem;
  problem.inputs.push_back(s.query_by_token ? draw.normal({s.tokens, D}, kLength / std::sqrt(D))
                                            : draw.query(D, kLength));
  if (s.normalised_keys) problem.inputs.push_back(draw.gain(D));
  for (int n = 0; n < kSources; ++n) problem.inputs.push_back(draw.rows({s.tokens, D}));
  problem.compute = [s](const Tensors& in) { return run_depth_scores(s, in); };
  problem.formula = [s](const Tensors& in) { return depth_scores_formula(s, in); };
  return problem;
}

}  // namespace

std::vector<OperationProblems> depth_scores_problems() {
  // The gradients of a source by its score and by its weight are rounded one by one.
  const ErrorBounds bounds = {3e-5, 3e-12, 3e-2};
  OperationProblems operation = {
      .name = "depth scores",
      .forward = bounds,
      .backward = bounds,
      .large = depth_scores_problem({.heads = 4, .head_width = 33, .tokens = 600})};
  for (const int64_t width : {1, 3, 8, 17, 100}) {
    for (const int64_t heads : {1, 3}) {
      operation.problems.push_back(depth_scores_problem({.heads = heads, .head_width = width}));
    }
  }
  for (const auto weighing :
       {DepthWeighing::softmax, DepthWeighing::sigmoid, DepthWeighing::factorised}) {
    for (const bool query_by_token : {false, true}) {
      for (const bool normalised_keys : {false, true}) {
        operation.problems.push_back(depth_scores_problem({.heads = 3,
                                                           .head_width = 17,
                                                           .weighing = weighing,
                                                           .query_by_token = query_by_token,
                                                           .normalised_keys = normalised_keys}));
      }
    }
  }
  return {operation};
}

}  // namespace attnres
