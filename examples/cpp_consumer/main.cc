// Depth attention of torch tensors: the input of a site that attends to two sources, and gradients.
#include <ATen/ops/eye.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>

#include <cstdio>

#include "attnres/ops/depth_attention/depth_attention.h"

namespace {

void print(const char* name, const at::Tensor& vector) {
  std::printf("%s", name);
  for (int64_t k = 0; k < vector.numel(); ++k) {
    std::printf(" %.7f", vector.data_ptr<double>()[k]);
  }
  std::printf("\n");
}

}  // namespace

int main() {
  const auto options = at::TensorOptions().dtype(at::kDouble);
  const at::Tensor identity = at::eye(4, options);
  const at::Tensor a = identity.select(0, 0), b = identity.select(0, 1);
  const at::Tensor query = at::tensor({2., 0., 0., 0.}, options).requires_grad_();
  const at::Tensor key_gain = at::ones({4}, options);

  const at::Tensor h = attnres::depth_attention({a, b}, query, key_gain, 1e-6);
  h.select(0, 0).backward();
  print("h", h);
  print("dh0/dw", query.grad());
}
