// Gradients of a list of sources, of which only some are needed.
#pragma once

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>

#include <vector>

namespace torch::autograd {
struct AutogradContext;
}

namespace attnres {

// Whether they are, of `count` inputs of a Function from its `first`th on.
c10::List<bool> needed_inputs(torch::autograd::AutogradContext* context, size_t first,
                              size_t count);

// For a backward to fill: one for each source that is needed, in their order.
std::vector<at::Tensor> allocate_gradients(at::TensorList sources, const c10::List<bool>& needed);

// Puts these into the places of the sources that need them, the first of which is at `to`.
void place_gradients(const std::vector<at::Tensor>& gradients, const c10::List<bool>& needed,
                     std::vector<at::Tensor>::iterator to);

}  // namespace attnres
