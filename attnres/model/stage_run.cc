#include "attnres/model/stage_run.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <algorithm>
#include <utility>

#include "attnres/support/error.h"

namespace attnres {
namespace {

using torch::autograd::variable_list;

// Where the backward of a run begins: it hands each end of the run its gradient. A sealed tensor's
// is in its slot, and nothing but the turn is handed on.
class EndNode : public torch::autograd::Node {
 public:
  EndNode(const variable_list& sealed, const variable_list& open, variable_list open_gradients)
      : gradients_(sealed.size()) {
    gradients_.insert(gradients_.end(), std::make_move_iterator(open_gradients.begin()),
                      std::make_move_iterator(open_gradients.end()));
    variable_list ends = sealed;
    ends.insert(ends.end(), open.begin(), open.end());
    set_next_edges(torch::autograd::collect_next_edges(ends));
  }
  std::string name() const override { return "StageEndBackward"; }
  variable_list apply(variable_list&&) override { return std::move(gradients_); }

 private:
  variable_list gradients_;
};

at::Tensor without_history(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.detach() : tensor;
}

}  // namespace

StageRun::StageRun(const Transformer& model, const CutState& before,
                   std::shared_ptr<const Spans> spans, SiteRange sites, const RunContext& context)
    : model_(model), recorded_(at::GradMode::is_enabled()), sealed_before_(before.sealed.size()) {
  DepthState state;
  state.site = sites.first;
  state.sequence.spans = std::move(spans);
  for (const at::Tensor& tensor : before.sealed) {
    sealed_.push_back(without_history(tensor));
    slots_.push_back(std::make_shared<GradientSlot>());
  }
  state.sealed = sealed_;
  for (const at::Tensor& tensor : before.open) {
    open_before_.push_back(tensor.detach().set_requires_grad(recorded_));
  }
  state.open = open_before_;
  run(std::move(state), sites, context);
}

StageRun::StageRun(const Transformer& model, const Batch& batch, SiteRange sites,
                   const RunContext& context)
    : model_(model), recorded_(at::GradMode::is_enabled()) {
  require(sites.first == 0, "stage run: only site 0 reads token ids, not site {}", sites.first);
  run(model.embed(batch.inputs_BT.flatten(), batch.spans()), sites, context);
}

void StageRun::run(DepthState state, SiteRange sites, const RunContext& context) {
  const int L = model_.sublayers(), last = std::min(sites.last, L);
  while (state.site < last) {
    give_slots(state);
    // Each site's readers reach the slots by themselves, so that their parts are added there.
    model_.run(state, context.recompute ? last : state.site + 1, context);
  }
  give_slots(state);
  if (sites.has(L)) {
    open_after_ = {model_.output(state, context)};
    sealed_.resize(sealed_before_);
  } else {
    model_.mixer().settle(state);
    give_slots(state);
    open_after_ = state.open;
    for (const at::Tensor& tensor : sealed_) after_.sealed.push_back(without_history(tensor));
  }
  for (const at::Tensor& tensor : open_after_) after_.open.push_back(tensor.detach());
}

void StageRun::give_slots(DepthState& state) {
  for (size_t i = sealed_.size(); i < state.sealed.size(); ++i) {
    sealed_.push_back(with_slot(state.sealed[i]));
    slots_.push_back(slot_of(sealed_[i]));
  }
  if (!recorded_) return;
  for (size_t i = 0; i < sealed_.size(); ++i) {
    if (slots_[i] && sealed_[i].defined()) state.sealed[i] = reading_into(slots_[i], sealed_[i]);
  }
}

CutState StageRun::backward(CutState gradients) {
  require(std::exchange(recorded_, false),
          "stage run: nothing is recorded, or its backward already ran");
  // After the output site nothing sealed is left to have a gradient.
  gradients.sealed.resize(after_.sealed.empty() ? sealed_.size() : gradients.sealed.size());
  require(gradients.sealed.size() == sealed_.size() && gradients.open.size() == open_after_.size(),
          "stage run: expected gradients of {} sealed and {} open tensors, got {} and {}",
          sealed_.size(), open_after_.size(), gradients.sealed.size(), gradients.open.size());
  for (size_t i = 0; i < sealed_.size(); ++i) {
    at::Tensor& gradient = gradients.sealed[i];
    if (gradient.defined() && slots_[i]) slots_[i]->add(std::move(gradient));
  }
  const auto end = std::make_shared<EndNode>(
      variable_list(sealed_.begin() + static_cast<int64_t>(sealed_before_), sealed_.end()),
      open_after_, std::move(gradients.open));
  at::Tensor begin = at::zeros({});
  torch::autograd::set_history(begin, end);
  torch::autograd::backward({begin}, {at::ones({})});

  CutState before;
  for (size_t i = 0; i < sealed_before_; ++i) {
    before.sealed.push_back(std::exchange(slots_[i]->gradient, at::Tensor()));
  }
  for (const at::Tensor& leaf : open_before_) before.open.push_back(leaf.grad());
  sealed_.clear();
  slots_.clear();
  open_before_.clear();
  open_after_.clear();
  return before;
}

}  // namespace attnres
