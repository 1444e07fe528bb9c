#include "attnres/model/recompute.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include "attnres/support/error.h"

namespace attnres {
namespace {

using torch::autograd::variable_list;

class ReplayNode : public torch::autograd::Node {
 public:
  ReplayNode(Replay replay, const variable_list& inputs) : replay_(std::move(replay)) {
    for (const at::Tensor& input : inputs) inputs_.emplace_back(input, /*is_output=*/false);
    set_next_edges(torch::autograd::collect_next_edges(inputs));
  }

  std::string name() const override { return "ReplayBackward"; }

  variable_list apply(variable_list&& gradients) override {
    require(!inputs_.empty(), "recomputation: this span's backward already ran");
    variable_list inputs;
    for (size_t i = 0; i < inputs_.size(); ++i) {
      inputs.push_back(
          inputs_[i].unpack().detach().set_requires_grad(task_should_compute_output(i)));
    }
    const at::AutoGradMode recording(true);
    const variable_list replayed = replay_(inputs);
    variable_list roots, root_gradients;
    for (size_t i = 0; i < replayed.size(); ++i) {
      if (!gradients[i].defined()) continue;
      roots.push_back(replayed[i]);
      root_gradients.push_back(gradients[i]);
    }
    if (!roots.empty()) torch::autograd::backward(roots, root_gradients);
    variable_list result;
    for (const at::Tensor& input : inputs) result.push_back(input.grad());
    return result;
  }

  void release_variables() override { inputs_.clear(); }

 private:
  Replay replay_;
  std::vector<torch::autograd::SavedVariable> inputs_;
};

}  // namespace

void differentiate_by_replay(std::vector<at::Tensor>& outputs,
                             const std::vector<at::Tensor>& inputs, Replay replay) {
  const auto node = std::make_shared<ReplayNode>(std::move(replay), inputs);
  for (at::Tensor& output : outputs) torch::autograd::set_history(output, node);
}

}  // namespace attnres
