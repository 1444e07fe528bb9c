#include <torch/library.h>

#include <algorithm>

#include "attnres/ops/rotary/kernel.h"
#include "attnres/ops/tensors.h"

namespace attnres {
namespace {

using at::Tensor;

Tensor rotary_cpu(const Tensor& x, const Tensor& cosine, const Tensor& sine) {
  const Tensor rows = x.contiguous(), y = empty_like_rows(x);
  const Tensor cosine_rows = cosine.contiguous(), sine_rows = sine.contiguous();
  with_storage_type(x.scalar_type(), [&](auto storage) {
    using Storage = decltype(storage);
    using T = kernel::Compute<Storage>;
    const kernel::Rotary<Storage> op{.num_tokens = x.size(1),
                                     .heads = x.size(2),
                                     .half = x.size(3) / 2,
                                     .cosine = data<const T>(cosine_rows),
                                     .sine = data<const T>(sine_rows),
                                     .x = data<const Storage>(rows),
                                     .y = data<Storage>(y)};
    parallel_over_tokens(x.size(0) * x.size(1), std::max<int64_t>(1, x.size(2) * x.size(3)),
                         [&](int64_t first, int64_t last) { kernel::rotary(op, first, last); });
  });
  return y;
}

}  // namespace

TORCH_LIBRARY_IMPL(attnres, CPU, m) {
  m.impl("rotary_fused", &rotary_cpu);
}

}  // namespace attnres
