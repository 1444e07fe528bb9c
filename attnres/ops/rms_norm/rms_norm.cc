#include "attnres/ops/rms_norm/rms_norm.h"

#include <ATen/ops/add.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <optional>

#include "attnres/ops/recorded_operation.h"
#include "attnres/ops/rms_norm/kernel.h"
#include "attnres/ops/tensors.h"

namespace attnres {
namespace {

using at::Tensor;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

// The gradients that arrive are those of y and, where there was an addition, of the sum.
class RmsNormNode : public torch::autograd::Node {
 public:
  std::string name() const override { return "AddRmsNormBackward"; }

  variable_list apply(variable_list&& gradients) override {
    require(h.has_value(), "rms_norm: its backward already ran");
    require(!at::GradMode::is_enabled(),
            "rms_norm: its gradient cannot be differentiated again; take it without create_graph");
    const Tensor state = h->unpack(shared_from_this()).contiguous(), gain_value = gain.unpack();
    const Tensor gain_compute = gain_value.to(rho.scalar_type()).contiguous();
    const Tensor grad_y =
        gradients[0].defined() ? gradients[0].contiguous() : at::zeros_like(state);
    const Tensor later = added && gradients[1].defined() ? gradients[1].contiguous() : Tensor();
    const Tensor grad_h = empty_like_rows(state);
    const int64_t width = state.size(-1);
    Tensor grad_gain;
    with_storage_type(state.scalar_type(), [&](auto storage) {
      using Storage = decltype(storage);
      using T = kernel::Compute<Storage>;
      const kernel::RmsNormBackward<Storage> op{
          .width = width,
          .h_TD = data<const Storage>(state),
          .rho_T = data<const T>(rho),
          .gain_D = data<const T>(gain_compute),
          .grad_y_TD = data<const Storage>(grad_y),
          .grad_later_TD = later.defined() ? data<const Storage>(later) : nullptr,
          .grad_h_TD = data<Storage>(grad_h)};
      grad_gain = sum_over_tokens(tokens_of(state), width, rho.scalar_type(),
                                  [&](int64_t first, int64_t last, const Tensor& sums) {
                                    kernel::rms_norm_backward(op, first, last, data<T>(sums));
                                  });
    });
    variable_list result = {grad_h};
    if (added) result.push_back(grad_h);
    result.push_back(grad_gain.to(gain_value.scalar_type()));
    return result;
  }

  void release_variables() override { h.reset(); }

  bool added = false;
  std::optional<SavedVariable> h;
  SavedVariable gain;
  Tensor rho;
};

AddedAndNormalized fused(const Tensor& state, const Tensor& pending, const Tensor& gain,
                         double eps) {
  const bool added = pending.defined();
  RecordedOperation recorded(added ? "attnres::add_rms_norm" : "attnres::rms_norm",
                             {state, pending, gain});
  const Tensor state_rows = state.contiguous();
  const Tensor pending_rows = added ? pending.contiguous() : Tensor();
  const Tensor gain_compute = gain.detach().to(compute_dtype(state)).contiguous();
  AddedAndNormalized result = {added ? empty_like_rows(state) : state_rows, empty_like_rows(state)};
  const Tensor rho = empty_per_token(state);
  const int64_t width = state.size(-1);
  with_storage_type(state.scalar_type(), [&](auto storage) {
    using Storage = decltype(storage);
    using T = kernel::Compute<Storage>;
    const kernel::RmsNormForward<Storage> op{
        .width = width,
        .state_TD = data<const Storage>(state_rows),
        .pending_TD = added ? data<const Storage>(pending_rows) : nullptr,
        .h_TD = added ? data<Storage>(result.sum) : nullptr,
        .gain_D = data<const T>(gain_compute),
        .eps = eps,
        .y_TD = data<Storage>(result.normalized),
        .rho_T = data<T>(rho)};
    parallel_over_tokens(tokens_of(state), 3 * width, [&](int64_t first, int64_t last) {
      kernel::rms_norm_forward(op, first, last);
    });
  });
  recorded.wrote({added ? result.sum : Tensor(), result.normalized});
  variable_list inputs = {state};
  if (added) inputs.push_back(pending);
  inputs.push_back(gain);
  if (!records(inputs)) return result;
  const auto node = std::make_shared<RmsNormNode>();
  node->set_next_edges(torch::autograd::collect_next_edges(inputs));
  torch::autograd::set_history(result.normalized, node);
  if (added) torch::autograd::set_history(result.sum, node);
  node->added = added;
  node->h.emplace(added ? result.sum : state_rows, /*is_output=*/added);
  node->gain = SavedVariable(gain, false);
  node->rho = rho;
  return result;
}

}  // namespace

Tensor rms_norm(const Tensor& x, const Tensor& gain, double eps) {
  if (!has_kernel(x)) return at::rms_norm(x, gain.sizes(), gain, eps);
  return fused(x, {}, gain, eps).normalized;
}

AddedAndNormalized add_rms_norm(const Tensor& state, const Tensor& pending, const Tensor& gain,
                                double eps) {
  if (has_kernel(state)) return fused(state, pending, gain, eps);
  const Tensor sum = at::add(state, pending);
  return {sum, at::rms_norm(sum, gain.sizes(), gain, eps)};
}

}  // namespace attnres
