#include "attnres/ops/operation_problems.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <iterator>

namespace attnres {

const std::vector<OperationFolder>& operation_folders() {
  static const std::vector<OperationFolder> folders = {
      {"depth_attention", depth_attention_problems},
      {"depth_scores", depth_scores_problems},
      {"residual_streams", residual_streams_problems},
      {"gated_streams", gated_streams_problems},
      {"sinkhorn", sinkhorn_problems},
      {"rms_norm", rms_norm_problems},
      {"swiglu", swiglu_problems},
      {"situ", situ_problems},
      {"rotary", rotary_problems},
      {"causal_attention", causal_attention_problems},
      {"paged_attention", paged_attention_problems},
      {"gated_delta_rule", gated_delta_rule_problems},
      {"delta_attention", delta_attention_problems},
      {"head_maps", head_maps_problems},
      {"packed_weight", packed_weight_problems},
      {"matmul", matmul_problems},
      {"small_products", small_products_problems},
  };
  return folders;
}

std::vector<OperationProblems> all_operation_problems() {
  std::vector<OperationProblems> all;
  for (const OperationFolder& folder : operation_folders()) {
    std::ranges::move(folder.problems(), std::back_inserter(all));
  }
  return all;
}

at::Tensor DrawnInputs::normal(at::IntArrayRef shape, double scale) {
  return fill(shape, [&](uint64_t i) { return scale * random_.normal(i); });
}

at::Tensor DrawnInputs::uniform(at::IntArrayRef shape) {
  return fill(shape, [&](uint64_t i) { return random_.uniform(i); });
}

at::Tensor DrawnInputs::rows(at::IntArrayRef shape) {
  return normal(shape, 1.5);
}

at::Tensor DrawnInputs::gain(int64_t width) {
  return fill({width}, [&](uint64_t i) { return 0.5 + random_.uniform(i); });
}

at::Tensor DrawnInputs::query(int64_t width, double length) {
  const at::Tensor query = normal({width}, 1);
  return query.mul(length / std::max(1e-3, query.norm().item<double>()));
}

at::Tensor DrawnInputs::fill(at::IntArrayRef shape, const std::function<double(uint64_t)>& value) {
  at::Tensor tensor = at::empty(shape, at::kDouble);
  double* values = tensor.data_ptr<double>();
  for (int64_t i = 0; i < tensor.numel(); ++i) values[i] = value(counter_++);
  return tensor;
}

namespace problems {

OperationProblems of_widths(const char* name, const std::vector<int64_t>& widths,
                            OperationProblem (*make)(int64_t tokens, int64_t width),
                            const ErrorBounds& forward,
                            const std::optional<ErrorBounds>& backward) {
  OperationProblems operation = {
      .name = name, .forward = forward, .backward = backward, .large = make(700, 130)};
  for (const int64_t width : widths) operation.problems.push_back(make(5, width));
  return operation;
}

OperationProblem product_problem(const char* name,
                                 const std::array<std::vector<int64_t>, 3>& shapes,
                                 void (*multiply)(const at::Tensor& a, const at::Tensor& b,
                                                  const at::Tensor& sum, bool add),
                                 at::Tensor (*formula)(const at::Tensor& a, const at::Tensor& b)) {
  DrawnInputs draw(name);
  OperationProblem problem;
  for (const std::vector<int64_t>& shape : shapes) problem.inputs.push_back(draw.rows(shape));
  problem.compute = [multiply](const Tensors& in) -> Tensors {
    const at::Tensor added = in[2].to(at::kFloat, false, /*copy=*/true);
    const at::Tensor alone = at::empty_like(added);
    multiply(in[0], in[1], alone, /*add=*/false);
    multiply(in[0], in[1], added, /*add=*/true);
    return {alone, added};
  };
  problem.formula = [formula](const Tensors& in) -> Tensors {
    const at::Tensor product = formula(in[0], in[1]);
    return {product, in[2] + product};
  };
  return problem;
}

std::vector<Number> row(const at::Tensor& rows, int64_t token) {
  const int64_t width = rows.size(-1);
  const double* values = rows.data_ptr<double>() + token * width;
  return {values, values + width};
}

std::vector<std::vector<Number>> rows_at(const Tensors& tensors, size_t begin, size_t count,
                                         int64_t token) {
  std::vector<std::vector<Number>> all;
  for (size_t i = begin; i < begin + count; ++i) {
    all.push_back(row(tensors[i], tensors[i].dim() == 1 ? 0 : token));
  }
  return all;
}

void add_row(const at::Tensor& rows, int64_t token, const std::vector<Number>& values) {
  const int64_t at = rows.dim() == 1 ? 0 : token;
  double* to = rows.data_ptr<double>() + at * rows.size(-1);
  for (size_t k = 0; k < values.size(); ++k) to[k] += static_cast<double>(values[k]);
}

Tensors zeros_like(const Tensors& tensors) {
  Tensors zeros;
  for (const at::Tensor& tensor : tensors) zeros.push_back(at::zeros_like(tensor));
  return zeros;
}

Tensors joined(Tensors results, const Tensors& gradients) {
  results.insert(results.end(), gradients.begin(), gradients.end());
  return results;
}

}  // namespace problems
}  // namespace attnres
