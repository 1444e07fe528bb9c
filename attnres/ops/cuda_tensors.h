// The bridge from tensors on a GPU to kernels. For the sources of the CUDA library.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "attnres/ops/tensors.h"

namespace attnres {

// Whether CUDA kernels of rows [..., D] can work on this tensor: float32 and bfloat16, D a multiple
// of 8 up to 8192.
bool has_cuda_kernel(const at::Tensor& rows);

// Contiguous, and at an address that is a multiple of 16.
at::Tensor cuda_rows(const at::Tensor& tensor);
std::vector<at::Tensor> cuda_rows(at::TensorList tensors);

// For the partial sums of a backward of that many tokens, `columns` numbers each.
at::Tensor cuda_run_sums(const at::Tensor& like, int64_t tokens, int64_t width, int64_t columns);

// The stream of this thread on the current device.
void* cuda_stream();

// Calls f with a value of the storage type, of those that has_cuda_kernel knows.
template <class F>
void with_cuda_type(at::ScalarType dtype, F f) {
  if (dtype == at::kBFloat16) return f(kernel::BFloat16{});
  require(dtype == at::kFloat, "there is no CUDA kernel for tensors of dtype {}",
          c10::toString(dtype));
  f(float{});
}

}  // namespace attnres
