#include "attnres/ops/sinkhorn/sinkhorn.h"

#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include "attnres/ops/once_differentiable.h"
#include "attnres/ops/recorded_operation.h"
#include "attnres/ops/sinkhorn/kernel.h"
#include "attnres/ops/tensors.h"
#include "attnres/support/error.h"

namespace attnres {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

template <class F>
void with_number_type(const Tensor& tensor, F f) {
  tensor.scalar_type() == at::kDouble ? f(double{}) : f(float{});
}

template <class T>
kernel::Sinkhorn<T> operation(const Tensor& logits_MMT, int64_t rounds, const Tensor& result) {
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

Tensor iterate(const Tensor& logits_MMT, int64_t rounds) {
  RecordedOperation recorded(
      "attnres::sinkhorn", [&] { return variable_list{logits_MMT}; }, /*passes=*/2 * rounds);
  const Tensor result = at::empty_like(logits_MMT);
  with_number_type(logits_MMT, [&](auto number) {
    const auto op = operation<decltype(number)>(logits_MMT, rounds, result);
    over_tokens(logits_MMT, rounds,
                [&](int64_t first, int64_t last) { kernel::sinkhorn(op, first, last); });
  });
  recorded.wrote({result});
  return result;
}

class SinkhornFunction : public torch::autograd::Function<SinkhornFunction> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& logits_MMT, int64_t rounds) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    context->save_for_backward({logits_MMT});
    context->saved_data["rounds"] = rounds;
    return iterate(logits_MMT, rounds);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    require_first_derivative("sinkhorn");
    const Tensor logits = context->get_saved_variables()[0], grad = gradients[0].contiguous();
    const int64_t rounds = context->saved_data["rounds"].toInt();
    const Tensor grad_logits = at::empty_like(logits);
    with_number_type(logits, [&](auto number) {
      using T = decltype(number);
      const kernel::SinkhornBackward<T> op{.forward = operation<T>(logits, rounds, {}),
                                           .grad_matrices_MMT = data<const T>(grad),
                                           .grad_logits_MMT = data<T>(grad_logits)};
      over_tokens(logits, 2 * rounds,
                  [&](int64_t first, int64_t last) { kernel::sinkhorn_backward(op, first, last); });
    });
    return {grad_logits, Tensor()};
  }
};

}  // namespace

Tensor sinkhorn(const Tensor& logits_TMM, int64_t rounds) {
  require(
      logits_TMM.dim() == 3 && logits_TMM.size(1) == logits_TMM.size(2) && logits_TMM.size(1) > 0 &&
          logits_TMM.is_cpu() && rounds >= 1 &&
          (logits_TMM.scalar_type() == at::kFloat || logits_TMM.scalar_type() == at::kDouble),
      "sinkhorn: expected logits [T, m, m] of float32 or float64 on the CPU and a round or more; "
      "they are {} {} on {}, and {}",
      c10::toString(logits_TMM.scalar_type()), shape_of(logits_TMM), logits_TMM.device().str(),
      rounds);
  const Tensor logits_MMT = logits_TMM.permute({1, 2, 0}).contiguous();
  const Tensor matrices_MMT = records({logits_MMT}) ? SinkhornFunction::apply(logits_MMT, rounds)
                                                    : iterate(logits_MMT, rounds);
  return matrices_MMT.permute({2, 0, 1}).contiguous();
}

}  // namespace attnres
