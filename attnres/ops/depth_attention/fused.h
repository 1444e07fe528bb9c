// What fused depth attention's registration, fallback and kernels share.
#pragma once

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <tuple>
#include <vector>

namespace torch::autograd {
struct AutogradContext;
}

namespace attnres {

// h [..., D], and [N, ...] each: alpha, the scores, the sources' reciprocal RMS; without numbers
// where they are not wanted: alpha where neither `give_weights` nor `for_backward`, which gives the
// rest.
using FusedResult = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
FusedResult allocate_fused(at::TensorList sources, bool give_weights, bool for_backward);

// A device without an index, "cuda", is any of its kind.
bool same_device(at::Device a, at::Device b);

// Whether gradients are needed of `count` inputs of a Function from its `first`th on.
c10::List<bool> needed_inputs(torch::autograd::AutogradContext* context, size_t first,
                              size_t count);

// For a backward to fill: one for each source that is needed, in their order.
std::vector<at::Tensor> allocate_gradients(at::TensorList sources, const c10::List<bool>& needed);

// Puts these into the places of the sources that need them, the first of which is at `to`.
void place_gradients(const std::vector<at::Tensor>& gradients, const c10::List<bool>& needed,
                     std::vector<at::Tensor>::iterator to);

}  // namespace attnres
