// Linear maps without bias, y = x W^T, forward and backward:
//
//   dL/dx = g W, dL/dW = g^T x        g = dL/dy
//
// Maps that read the same x are one operation: the gradients that reach x through each are added up
// inside the products rather than in passes over memory of their own.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "attnres/parameters/packed_matrix.h"

namespace attnres {

// W [N, K], and what is multiplied in its place: where x has another dtype, the same numbers in
// that one, without a gradient of their own. The parameter gets the gradient, in its own dtype.
// Or packed numbers, which x may have any dtype for, and which have no gradient themselves.
struct MapWeight {
  MapWeight(at::Tensor weight) : parameter(weight), values(std::move(weight)) {}
  MapWeight(at::Tensor of_parameter, at::Tensor of_values)
      : parameter(std::move(of_parameter)), values(std::move(of_values)) {}
  MapWeight(at::Tensor of_parameter, PackedMatrix of_packed)
      : parameter(std::move(of_parameter)), packed(std::move(of_packed)) {}

  at::Tensor parameter, values;
  PackedMatrix packed;
};

// x [..., K] and W's values [N, K] of one dtype and device give [..., N]. Throws Error naming the
// shapes where they do not fit, and when its gradient is to be differentiated again.
at::Tensor linear_map(const at::Tensor& x, const MapWeight& weight);

// Each weight [N_i, K] gives an output [..., N_i].
std::vector<at::Tensor> linear_maps(const at::Tensor& x, const std::vector<MapWeight>& weights);

}  // namespace attnres
