#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

#include "attnres/ops/gated_delta_rule/gated_delta_rule.h"
#include "attnres/ops/gated_delta_rule/reference.h"
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

using DeltaMatrix = std::vector<std::vector<Number>>;

// One head of one sequence of [B, T, H, ...].
Tensor head_of(const Tensor& x, int64_t batch, int64_t head) {
  return x.select(0, batch).select(1, head);
}

DeltaMatrix matrix(const Tensor& rows) {
  return rows_at(rows.contiguous().unbind(0), 0, static_cast<size_t>(rows.size(0)), 0);
}

void add_matrix(const Tensor& rows, const DeltaMatrix& values) {
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

std::vector<OperationProblems> gated_delta_rule_problems() {
  const ErrorBounds bounds = {4e-6, 1e-14, 8e-3};
  // Without a gradient there is the kernel.
  return {
      delta_rule_problems("gated delta rule", gated_delta_rule, bounds, {}),
      delta_rule_problems("gated delta rule by chunks", gated_delta_rule_chunked, bounds, bounds)};
}

}  // namespace attnres
