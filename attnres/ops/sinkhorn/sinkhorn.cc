#include "attnres/ops/sinkhorn/sinkhorn.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "attnres/ops/once_differentiable.h"
#include "attnres/ops/operation.h"
#include "attnres/ops/tensors.h"
#include "attnres/ops/transformed.h"
#include "attnres/support/error.h"

namespace attnres {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// An entry's numbers of all tokens follow each other: [m, m, T].
Tensor sinkhorn_meta(const Tensor& logits_MMT, int64_t /*rounds*/) {
  return empty_like_rows(logits_MMT);
}

Tensor sinkhorn_backward_meta(const Tensor& /*grad_matrices_MMT*/, const Tensor& logits_MMT,
                              int64_t /*rounds*/) {
  return empty_like_rows(logits_MMT);
}

constexpr Operation<sinkhorn_meta> kSinkhorn("attnres::sinkhorn_fused");
constexpr Operation<sinkhorn_backward_meta> kSinkhornBackward("attnres::sinkhorn_fused_backward");

class SinkhornFunction : public torch::autograd::Function<SinkhornFunction> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& logits_MMT, int64_t rounds) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    context->save_for_backward({logits_MMT});
    context->saved_data["rounds"] = rounds;
    return kSinkhorn->call(logits_MMT, rounds);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    return {kSinkhornBackward->call(gradients[0], context->get_saved_variables()[0],
                                    context->saved_data["rounds"].toInt()),
            Tensor()};
  }
};

Tensor sinkhorn_autograd(const Tensor& logits_MMT, int64_t rounds) {
  require_untransformed("sinkhorn_fused", {logits_MMT});
  return SinkhornFunction::apply(logits_MMT, rounds);
}

}  // namespace

Tensor sinkhorn(const Tensor& logits_TMM, int64_t rounds) {
  if (logits_TMM.dim() != 3 || logits_TMM.sym_size(1) != logits_TMM.sym_size(2) ||
      logits_TMM.sym_size(1) < 1 || rounds < 1 ||
      (logits_TMM.scalar_type() != at::kFloat && logits_TMM.scalar_type() != at::kDouble)) {
    fail(
        "sinkhorn: expected logits [T, m, m] of float32 or float64 and a round or more; they are "
        "{} {}, and {}",
        c10::toString(logits_TMM.scalar_type()), shape_of(logits_TMM), rounds);
  }
  if (!has_kernel(logits_TMM) || is_transformed({logits_TMM})) {
    return sinkhorn_composed(logits_TMM, rounds);
  }
  const Tensor logits_MMT = logits_TMM.permute({1, 2, 0}).contiguous();
  return call_operation(*kSinkhorn, logits_MMT, rounds).permute({2, 0, 1}).contiguous();
}

TORCH_LIBRARY_FRAGMENT(attnres, m) {
  m.def("sinkhorn(Tensor logits, int rounds) -> Tensor", &sinkhorn);
  m.def("sinkhorn_fused(Tensor logits, int rounds) -> Tensor");
  m.def("sinkhorn_fused_backward(Tensor grad_matrices, Tensor logits, int rounds) -> Tensor");
}

TORCH_LIBRARY_IMPL(attnres, Meta, m) {
  m.impl("sinkhorn_fused", &sinkhorn_meta);
  m.impl("sinkhorn_fused_backward", &sinkhorn_backward_meta);
}
TORCH_LIBRARY_IMPL(attnres, FuncTorchBatchedDecomposition, m) {
  m.impl("sinkhorn", &sinkhorn);
}
TORCH_LIBRARY_IMPL(attnres, Autograd, m) {
  m.impl("sinkhorn_fused", &sinkhorn_autograd);
  implement_once_differentiable(m, {"sinkhorn_fused_backward"});
}

}  // namespace attnres
