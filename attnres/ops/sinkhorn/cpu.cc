#include <torch/library.h>

#include "attnres/ops/recorded_operation.h"
#include "attnres/ops/sinkhorn/kernel.h"
#include "attnres/ops/tensors.h"

namespace attnres {
namespace {

using at::Tensor;

template <class F>
void with_number_type(const Tensor& tensor, F f) {
  tensor.scalar_type() == at::kDouble ? f(double{}) : f(float{});
}

template <class T>
kernel::Sinkhorn<T> sinkhorn_rounds(const Tensor& logits_MMT, int64_t rounds,
                                    const Tensor& result) {
  return {.size = logits_MMT.size(0),
          .rounds = rounds,
          .tokens = logits_MMT.size(2),
          .logits_MMT = data<const T>(logits_MMT),
          .matrices_MMT = data<T>(result)};
}

void over_tokens(const Tensor& logits_MMT, int64_t rounds,
                 const std::function<void(int64_t, int64_t)>& f) {
  parallel_over_tokens(logits_MMT.size(2), rounds * logits_MMT.size(0) * logits_MMT.size(0), f);
}

Tensor sinkhorn_cpu(const Tensor& logits_MMT, int64_t rounds) {
  RecordedOperation recorded(
      "attnres::sinkhorn", [&] { return std::vector<Tensor>{logits_MMT}; }, /*passes=*/2 * rounds);
  const Tensor logits = logits_MMT.contiguous(), result = empty_like_rows(logits);
  with_number_type(logits, [&](auto number) {
    const auto op = sinkhorn_rounds<decltype(number)>(logits, rounds, result);
    over_tokens(logits, rounds,
                [&](int64_t first, int64_t last) { kernel::sinkhorn(op, first, last); });
  });
  recorded.wrote({result});
  return result;
}

Tensor sinkhorn_backward_cpu(const Tensor& grad_matrices_MMT, const Tensor& logits_MMT,
                             int64_t rounds) {
  const Tensor logits = logits_MMT.contiguous(), grad = grad_matrices_MMT.contiguous();
  const Tensor grad_logits = empty_like_rows(logits);
  with_number_type(logits, [&](auto number) {
    using T = decltype(number);
    const kernel::SinkhornBackward<T> op{.forward = sinkhorn_rounds<T>(logits, rounds, {}),
                                         .grad_matrices_MMT = data<const T>(grad),
                                         .grad_logits_MMT = data<T>(grad_logits)};
    over_tokens(logits, 2 * rounds,
                [&](int64_t first, int64_t last) { kernel::sinkhorn_backward(op, first, last); });
  });
  return grad_logits;
}

}  // namespace

TORCH_LIBRARY_IMPL(attnres, CPU, m) {
  m.impl("sinkhorn_fused", &sinkhorn_cpu);
  m.impl("sinkhorn_fused_backward", &sinkhorn_backward_cpu);
}

}  // namespace attnres
