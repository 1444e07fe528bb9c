#include "attnres/model/recompute.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <utility>

#include "attnres/model/stage_run.h"
#include "attnres/ops/gradient_slot.h"
#include "attnres/support/error.h"

namespace attnres {
namespace {

using torch::autograd::variable_list;

// Sees a span that runs again.
class SecondPass : public RunObserver {
 public:
  explicit SecondPass(RecomputedOutputs* observer) : observer_(observer) {}
  void on_output(int site, const at::Tensor& y, const at::Tensor&) override {
    observer_->on_output_again(site, y);
  }

 private:
  RecomputedOutputs* observer_;
};

// A span's backward. The gradients that arrive are of what it sealed, then of what it left open.
class ReplayNode : public torch::autograd::Node {
 public:
  // `before`: settled, whose sealed tensors have slots, where they need a gradient.
  ReplayNode(const Transformer& model, const DepthState& before, SiteRange span,
             RunObserver* observer)
      : model_(model),
        span_(span),
        observer_(dynamic_cast<RecomputedOutputs*>(observer)),
        spans_(before.sequence.spans),
        num_sealed_(before.sealed.size()) {
    variable_list inputs = before.sealed;
    inputs.insert(inputs.end(), before.open.begin(), before.open.end());
    for (const at::Tensor& input : inputs) inputs_.emplace_back(input, /*is_output=*/false);
    for (const at::Tensor& sealed : before.sealed) slots_.push_back(slot_of(sealed));
    set_next_edges(torch::autograd::collect_next_edges(inputs));
  }

  std::string name() const override { return "ReplayBackward"; }

  variable_list apply(variable_list&& gradients) override {
    require(!inputs_.empty(), "recomputation: this span's backward already ran");
    CutState before;
    for (size_t i = 0; i < inputs_.size(); ++i) {
      (i < num_sealed_ ? before.sealed : before.open).push_back(inputs_[i].unpack());
    }
    const at::AutoGradMode recording(true);
    SecondPass second(observer_);
    StageRun again(model_, before, spans_, span_,
                   {.observer = observer_ == nullptr ? nullptr : &second});
    CutState later;
    for (const auto& slot : slots_) {
      later.sealed.push_back(slot ? std::exchange(slot->gradient, {}) : at::Tensor());
    }
    for (size_t i = 0; i < gradients.size(); ++i) {
      const bool sealed = num_sealed_ + i < again.after().sealed.size();
      (sealed ? later.sealed : later.open).push_back(std::move(gradients[i]));
    }
    CutState earlier = again.backward(std::move(later));
    for (size_t i = 0; i < num_sealed_; ++i) {
      if (slots_[i]) slots_[i]->gradient = std::move(earlier.sealed[i]);
    }
    variable_list result(num_sealed_);  // in their slots
    result.insert(result.end(), earlier.open.begin(), earlier.open.end());
    return result;
  }

  void release_variables() override { inputs_.clear(); }

 private:
  const Transformer& model_;
  SiteRange span_;
  RecomputedOutputs* observer_;  // null: nobody looks
  std::shared_ptr<const Spans> spans_;
  size_t num_sealed_;
  std::vector<torch::autograd::SavedVariable> inputs_;
  std::vector<std::shared_ptr<GradientSlot>> slots_;  // of the sealed inputs
};

void run_span(const Transformer& model, DepthState& state, int last, const RunContext& context) {
  model.mixer().settle(state);
  for (at::Tensor& sealed : state.sealed) sealed = with_slot(sealed);
  DepthState after;
  after.sealed = state.sealed;
  after.open = state.open;
  after.site = state.site;
  after.sequence = state.sequence;
  {
    const at::NoGradGuard not_recording;
    model.run(after, last, {.observer = context.observer, .expert_loads = context.expert_loads});
    model.mixer().settle(after);
  }
  const auto node =
      std::make_shared<ReplayNode>(model, state, SiteRange{state.site, last}, context.observer);
  const auto with_history = [&](const at::Tensor& tensor) {
    at::Tensor output = tensor.detach();
    torch::autograd::set_history(output, node);
    return output;
  };
  for (size_t i = state.sealed.size(); i < after.sealed.size(); ++i) {
    state.sealed.push_back(with_slot(with_history(after.sealed[i])));
  }
  state.open.clear();
  for (const at::Tensor& tensor : after.open) state.open.push_back(with_history(tensor));
  state.site = last;
}

}  // namespace

void run_recomputed(const Transformer& model, DepthState& state, int last,
                    const RunContext& context) {
  std::vector<int> ends = model.mixer().cuts();
  ends.push_back(last);
  for (const int end : ends) {
    if (state.site < end && end <= last) run_span(model, state, end, context);
  }
}

}  // namespace attnres
