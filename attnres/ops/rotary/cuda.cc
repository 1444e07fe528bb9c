#include "attnres/ops/rotary/cuda.h"

#include <c10/cuda/CUDAGuard.h>
#include <torch/library.h>

#include "attnres/ops/cuda_tensors.h"

namespace attnres {
namespace {

using at::Tensor;

Tensor rotary_cuda(const Tensor& x, const Tensor& cosine, const Tensor& sine) {
  const c10::cuda::CUDAGuard device(x.device());
  const Tensor rows = cuda_rows(x), y = empty_like_rows(x);
  const Tensor cosine_rows = cuda_rows(cosine), sine_rows = cuda_rows(sine);
  with_cuda_type(x.scalar_type(), [&](auto storage) {
    using Storage = decltype(storage);
    const kernel::Rotary<Storage> op{.num_tokens = x.size(1),
                                     .heads = x.size(2),
                                     .half = x.size(3) / 2,
                                     .cosine = data<const float>(cosine_rows),
                                     .sine = data<const float>(sine_rows),
                                     .x = data<const Storage>(rows),
                                     .y = data<Storage>(y)};
    require(gpu::rotary_on_gpu(op, x.size(0) * x.size(1), cuda_stream()),
            "rotary: there is no CUDA kernel for heads of {}; their width must be a multiple of "
            "16: take rotary_composed",
            x.size(3));
  });
  return y;
}

}  // namespace

TORCH_LIBRARY_IMPL(attnres, CUDA, m) {
  m.impl("rotary_fused", &rotary_cuda);
}

}  // namespace attnres
