#include "attnres/ops/linear_cross_entropy/cuda.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <c10/cuda/CUDAGuard.h>

#include "attnres/ops/cuda_tensors.h"
#include "attnres/ops/linear_cross_entropy/chunks.h"
#include "attnres/ops/matmul/products.h"

namespace attnres {
namespace {

using at::Tensor;

Tensor chunk_logits_cuda(const Tensor& hidden_CD, const Tensor& weight_VD, const Tensor& copy_VD) {
  if (hidden_CD.scalar_type() != at::kBFloat16) {
    return chunk_logits_composed(hidden_CD, weight_VD, copy_VD);
  }
  return at::mm(hidden_CD, copy_VD.t(), at::kFloat);
}

Tensor chunk_loss_cuda(const Tensor& logits_CV, const Tensor& targets_C,
                       std::optional<double> scale, at::ScalarType dtype, const Tensor& nll_C) {
  const bool has_kernel = logits_CV.scalar_type() == at::kFloat &&
                          (dtype == at::kFloat || dtype == at::kBFloat16) &&
                          logits_CV.size(1) % 8 == 0;
  if (!has_kernel) return chunk_loss_composed(logits_CV, targets_C, scale, dtype, nll_C);
  const c10::cuda::CUDAGuard device(logits_CV.device());
  const Tensor logits = cuda_rows(logits_CV), targets = targets_C.contiguous();
  Tensor gradient;
  if (scale) {
    gradient =
        dtype == at::kFloat ? logits : at::empty(logits.sizes(), logits.options().dtype(dtype));
  }
  with_cuda_type(dtype, [&](auto storage) {
    using Storage = decltype(storage);
    const gpu::CrossEntropyRows<Storage> op{.rows = logits.size(0),
                                            .vocabulary = logits.size(1),
                                            .logits_CV = data<const float>(logits),
                                            .targets_C = data<const int64_t>(targets),
                                            .scale = static_cast<float>(scale.value_or(0)),
                                            .nll_C = data<float>(nll_C),
                                            .grad_CV = scale ? data<Storage>(gradient) : nullptr};
    require(gpu::cross_entropy_on_gpu(op, cuda_stream()),
            "cross-entropy: there is no CUDA kernel for a vocabulary of {}", op.vocabulary);
  });
  return gradient;
}

const OnDevice chunk_logits_on_gpu(chunk_logits_table, at::kCUDA, &chunk_logits_cuda);
const OnDevice chunk_loss_on_gpu(chunk_loss_table, at::kCUDA, &chunk_loss_cuda);

}  // namespace
}  // namespace attnres
