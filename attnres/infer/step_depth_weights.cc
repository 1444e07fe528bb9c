#include "attnres/infer/step_depth_weights.h"

#include <ATen/core/Tensor.h>

namespace attnres {

void StepDepthWeights::on_read(int /*site*/, const ReadTrace& trace) {
  if (!trace.weights.defined()) return;
  const at::Tensor own_TN = trace.weights.detach().to(at::kCPU, at::kFloat).t().contiguous();
  weights_TN_.push_back(group_ == nullptr ? own_TN : group_->all_gather(own_TN, tokens_));
}

void StepDepthWeights::add_to(TokensDepthWeights* weights, int64_t first, int64_t row,
                              int64_t tokens) const {
  if (weights->weights.empty()) weights->first = first;
  for (int64_t token = row; token < row + tokens; ++token) {
    std::vector<std::vector<float>>& sites = weights->weights.emplace_back();
    for (const at::Tensor& weights_TN : weights_TN_) {
      const int64_t sources = weights_TN.size(1);
      const float* data = weights_TN.const_data_ptr<float>() + token * sources;
      sites.emplace_back(data, data + sources);
    }
  }
}

}  // namespace attnres
