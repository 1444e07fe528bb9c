#include "attnres/ops/transformed.h"

#include <ATen/functorch/DynamicLayer.h>

#include <algorithm>

#include "attnres/support/error.h"

namespace attnres {

bool is_transformed(at::TensorList inputs) {
  return !at::functorch::getDynamicLayerStack().empty() ||
         std::any_of(inputs.begin(), inputs.end(), [](const at::Tensor& input) {
           return input.defined() && input._fw_grad(/*level=*/0).defined();
         });
}

void require_untransformed(const char* operation, at::TensorList inputs) {
  require(!is_transformed(inputs),
          "{}: its kernel has no forward-mode derivative and no rule for torch.func; differentiate "
          "backward, by autograd, or compose it of tensor operations",
          operation);
}

}  // namespace attnres
