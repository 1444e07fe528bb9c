#include "attnres/ops/gradient_slot.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/alias.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <utility>

#include "attnres/ops/once_differentiable.h"
#include "attnres/ops/tensors.h"

namespace attnres {
namespace {

using at::Tensor;
using torch::autograd::variable_list;

// Whether nobody else sees the tensor's numbers.
bool is_unshared(const Tensor& tensor) {
  return tensor.use_count() == 1 && tensor.storage().use_count() == 1;
}

Tensor empty_sum(const Tensor& source) {
  return at::empty_symint(source.sym_sizes(), source.options().dtype(compute_dtype(source)));
}

// The identity to its readers, whose gradients gather in the slot: at the end of a slot the sum
// leaves for the source's own graph; at a way into it nothing does, and that graph only waits.
class SlotNode : public torch::autograd::Node {
 public:
  SlotNode(std::shared_ptr<GradientSlot> slot, const Tensor& source, bool is_end)
      : slot_(std::move(slot)), dtype_(source.scalar_type()), is_end_(is_end) {
    set_next_edges(torch::autograd::collect_next_edges(source));
  }
  std::string name() const override { return "GradientSlotBackward"; }
  const std::shared_ptr<GradientSlot>& slot() const { return slot_; }

  variable_list apply(variable_list&& gradients) override {
    Tensor arrived = std::move(gradients[0]);
    if (!is_end_) {
      require_first_derivative("gradient slot");
      if (arrived.defined()) slot_->add(std::move(arrived));
      return variable_list(num_outputs());
    }
    Tensor sum = std::exchange(slot_->gradient, Tensor());
    if (!sum.defined()) return {arrived};
    require_first_derivative("gradient slot");
    if (arrived.defined()) sum = at::add(sum, arrived);
    return {sum.to(dtype_)};
  }

 private:
  std::shared_ptr<GradientSlot> slot_;
  at::ScalarType dtype_;
  bool is_end_;
};

Tensor through_slot(const std::shared_ptr<GradientSlot>& slot, const Tensor& source, bool is_end) {
  const auto node = std::make_shared<SlotNode>(slot, source, is_end);
  Tensor value = same_data(source);
  // One count of changes in place, so that readers see those of the source.
  torch::autograd::impl::set_version_counter(value, torch::autograd::impl::version_counter(source));
  torch::autograd::set_history(value, node);
  return value;
}

}  // namespace

Tensor same_data(const Tensor& tensor) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return at::alias(tensor);
}

void GradientSlot::add(Tensor part) {
  const at::NoGradGuard not_recording;
  if (gradient.defined()) {
    gradient.add_(part);
    return;
  }
  const at::ScalarType dtype = compute_dtype(part);
  const bool is_own = part.scalar_type() == dtype && part.is_contiguous() && is_unshared(part);
  gradient =
      is_own ? std::move(part) : at::empty(part.sizes(), part.options().dtype(dtype)).copy_(part);
}

bool GradientSlot::begin(const Tensor& source) {
  if (gradient.defined()) return true;
  gradient = empty_sum(source);
  return false;
}

Tensor with_slot(const Tensor& source) {
  if (!records({source}) || slot_of(source)) return source;
  return through_slot(std::make_shared<GradientSlot>(), source, /*is_end=*/true);
}

void with_slots(std::vector<Tensor>& sources) {
  for (Tensor& source : sources) source = with_slot(source);
}

Tensor reading_into(const std::shared_ptr<GradientSlot>& slot, const Tensor& source) {
  return through_slot(slot, source, /*is_end=*/false);
}

std::shared_ptr<GradientSlot> slot_of(const Tensor& tensor) {
  if (!tensor.defined()) return nullptr;
  const auto node = std::dynamic_pointer_cast<SlotNode>(tensor.grad_fn());
  return node ? node->slot() : nullptr;
}

SourceGradient::SourceGradient(const Tensor& source, bool wanted) : dtype_(source.scalar_type()) {
  if (!wanted) return;
  const auto slot = slot_of(source);
  in_slot_ = slot != nullptr;
  accumulate_ = in_slot_ && slot->begin(source);
  sum_ = in_slot_ ? slot->gradient : empty_sum(source);
}

Tensor SourceGradient::to_return() const {
  return !sum_.defined() || in_slot_ ? Tensor() : sum_.to(dtype_);
}

SourceGradients::SourceGradients(const torch::autograd::AutogradContext& context,
                                 at::TensorList sources) {
  for (size_t n = 0; n < sources.size(); ++n) {
    const auto& gradient = gradients_.emplace_back(sources[n], context.needs_input_grad(n));
    sums_.push_back(gradient.sum().defined() ? gradient.sum() : empty_result(sources[n]));
    accumulate_.push_back(gradient.accumulate());
  }
}

variable_list SourceGradients::to_return(size_t others) const {
  variable_list results;
  for (const SourceGradient& gradient : gradients_) results.push_back(gradient.to_return());
  results.resize(results.size() + others);
  return results;
}

}  // namespace attnres
