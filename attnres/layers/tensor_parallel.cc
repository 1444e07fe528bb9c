#include "attnres/layers/tensor_parallel.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <utility>

#include "attnres/ops/tensors.h"
#include "attnres/support/error.h"

namespace attnres {
namespace {

using torch::autograd::variable_list;

enum class Exchange { gather, sum };

at::Tensor exchanged(Exchange exchange, const TensorGroup& group, const at::Tensor& x,
                     int64_t rows) {
  return exchange == Exchange::gather ? group.all_gather(x, rows) : group.reduce_scatter(x);
}

// The other exchange, of the gradient. Every process takes part, one without a gradient with zeros.
class ExchangeNode : public torch::autograd::Node {
 public:
  ExchangeNode(Exchange backward, const TensorGroup& group, const at::Tensor& input,
               const at::Tensor& output, int64_t rows)
      : backward_(backward),
        group_(group),
        sizes_(output.sizes().vec()),
        options_(output.options().requires_grad(false)),
        rows_(rows) {
    set_next_edges(torch::autograd::collect_next_edges(input));
  }
  std::string name() const override { return "TensorGroupBackward"; }

  variable_list apply(variable_list&& gradients) override {
    const at::NoGradGuard not_recording;
    const at::Tensor gradient =
        gradients[0].defined() ? std::move(gradients[0]) : at::zeros(sizes_, options_);
    return {exchanged(backward_, group_, gradient, rows_)};
  }

 private:
  Exchange backward_;
  const TensorGroup& group_;
  std::vector<int64_t> sizes_;
  at::TensorOptions options_;
  int64_t rows_;
};

at::Tensor recorded_exchange(Exchange exchange, const TensorGroup& group, const at::Tensor& x,
                             int64_t rows) {
  at::Tensor y;
  {
    const at::NoGradGuard not_recording;
    y = exchanged(exchange, group, x.detach(), rows);
  }
  if (!records({x})) return y;
  const Exchange backward = exchange == Exchange::gather ? Exchange::sum : Exchange::gather;
  const auto node = std::make_shared<ExchangeNode>(backward, group, x, y, rows);
  torch::autograd::set_history(y, node);
  return y;
}

}  // namespace

at::Tensor gather_tokens(const TensorGroup& group, const at::Tensor& own, int64_t tokens) {
  return recorded_exchange(Exchange::gather, group, own, tokens);
}

at::Tensor sum_own_tokens(const TensorGroup& group, const at::Tensor& part) {
  return recorded_exchange(Exchange::sum, group, part, part.size(0));
}

at::Tensor sum_own_heads(const TensorGroup& group, const at::Tensor& part_THK) {
  return sum_own_tokens(group, part_THK.transpose(0, 1)).transpose(0, 1);
}

TensorParallel::TensorParallel(std::unique_ptr<Sublayer> part, const TensorGroup& group)
    : part_(std::move(part)), group_(group) {}

SublayerOutput TensorParallel::forward(const SublayerInput& own,
                                       const SequenceContext& context) const {
  require(context.spans != nullptr,
          "tensor parallelism: which tokens are whose follows from the spans of the call; give "
          "them");
  SublayerInput all = {.adapt_heads = own.adapt_heads};
  for (const auto member :
       {&SublayerInput::x, &SublayerInput::query, &SublayerInput::key, &SublayerInput::value}) {
    if (!(own.*member).defined()) continue;
    all.*member = gather_tokens(group_, own.*member, context.spans->tokens());
  }
  SublayerOutput output = part_->forward(all, context);
  output.y = sum_own_tokens(group_, output.y);
  return output;
}

}  // namespace attnres
