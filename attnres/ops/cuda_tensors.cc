#include "attnres/ops/cuda_tensors.h"

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAStream.h>

#include "attnres/ops/cuda_code.h"

namespace attnres {

bool has_cuda_kernel(const at::Tensor& rows) {
  const at::ScalarType dtype = rows.scalar_type();
  return rows.device().is_cuda() && rows.layout() == at::kStrided &&
         (dtype == at::kFloat || dtype == at::kBFloat16) && rows.dim() > 0 &&
         gpu::has_width(rows.size(-1));
}

namespace {

const OnDevice rows_cuda(row_kernel_table, at::kCUDA, &has_cuda_kernel);

}  // namespace

at::Tensor cuda_rows(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  const at::Tensor rows = tensor.contiguous();
  const auto address = reinterpret_cast<uintptr_t>(rows.const_data_ptr());
  return address % 16 == 0 ? rows : rows.clone();
}

std::vector<at::Tensor> cuda_rows(at::TensorList tensors) {
  std::vector<at::Tensor> rows;
  for (const at::Tensor& tensor : tensors) rows.push_back(cuda_rows(tensor));
  return rows;
}

at::Tensor cuda_run_sums(const at::Tensor& like, int64_t tokens, int64_t width, int64_t columns) {
  return at::empty({gpu::runs_of_tokens(tokens, width), columns}, like.options().dtype(at::kFloat));
}

void* cuda_stream() {
  return c10::cuda::getCurrentCUDAStream().stream();
}

}  // namespace attnres
