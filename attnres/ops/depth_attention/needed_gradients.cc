#include "attnres/ops/depth_attention/needed_gradients.h"

#include <torch/csrc/autograd/custom_function.h>

#include "attnres/ops/tensors.h"

namespace attnres {

c10::List<bool> needed_inputs(torch::autograd::AutogradContext* context, size_t first,
                              size_t count) {
  c10::List<bool> needed;
  for (size_t n = 0; n < count; ++n) needed.push_back(context->needs_input_grad(first + n));
  return needed;
}

std::vector<at::Tensor> allocate_gradients(at::TensorList sources, const c10::List<bool>& needed) {
  std::vector<at::Tensor> gradients;
  for (size_t n = 0; n < sources.size(); ++n) {
    if (needed[n]) gradients.push_back(empty_like_rows(sources[n]));
  }
  return gradients;
}

void place_gradients(const std::vector<at::Tensor>& gradients, const c10::List<bool>& needed,
                     std::vector<at::Tensor>::iterator to) {
  for (size_t n = 0, next = 0; n < needed.size(); ++n, ++to) {
    if (needed[n]) *to = gradients[next++];
  }
}

}  // namespace attnres
