#include "attnres/ops/linear_cross_entropy/linear_cross_entropy.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/ScalarType.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <tuple>

#include "attnres/ops/linear_cross_entropy/chunks.h"
#include "attnres/ops/matmul/products.h"
#include "attnres/ops/operation.h"
#include "attnres/ops/tensors.h"
#include "attnres/ops/transformed.h"
#include "attnres/support/error.h"

namespace attnres {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The loss, and its gradients for hidden and weight, of size [0] where not wanted.
using LossAndGradients = std::tuple<Tensor, Tensor, Tensor>;

void check_inputs(const char* operation, const Tensor& hidden, const Tensor& weight,
                  const Tensor& targets) {
  if (hidden.dim() != 2) fail("{}: hidden must be [M, D], but is {}", operation, shape_of(hidden));
  if (weight.dim() != 2 || weight.sym_size(1) != hidden.sym_size(1) || weight.sym_size(0) < 1) {
    fail("{}: weight must be [V, D] with hidden's D; hidden is {}, weight {}", operation,
         shape_of(hidden), shape_of(weight));
  }
  if (targets.dim() != 1 || targets.sym_size(0) != hidden.sym_size(0) ||
      targets.scalar_type() != at::kLong) {
    fail("{}: targets must be [M] int64 with hidden's M; hidden is {}, targets {} of {}", operation,
         shape_of(hidden), shape_of(targets), c10::toString(targets.scalar_type()));
  }
  if (!at::isFloatingType(hidden.scalar_type()) ||
      (hidden.scalar_type() != weight.scalar_type() &&
       compute_dtype(hidden) != weight.scalar_type())) {
    fail("{}: hidden and weight must share a floating dtype, or weight be {}; they are {} and {}",
         operation, c10::toString(compute_dtype(hidden)), c10::toString(hidden.scalar_type()),
         c10::toString(weight.scalar_type()));
  }
  if (hidden.device() != weight.device() ||
      (hidden.device() != targets.device() && !targets.is_cpu())) {
    fail("{}: hidden, weight and targets must be on one device; they are on {}, {} and {}",
         operation, hidden.device().str(), weight.device().str(), targets.device().str());
  }
}

// On the weight's device. Their numbers are checked where they are, so that nobody has to wait.
Tensor checked_targets(const char* operation, const Tensor& targets, const Tensor& weight) {
  const int64_t vocabulary = weight.size(0);
  const Tensor right =
      targets.eq(kIgnoredTarget).logical_or(targets.ge(0).logical_and(targets.lt(vocabulary)));
  if (!targets.is_cpu()) {
    check_on_device(right, "linear_cross_entropy: a target is neither in [0, V) nor -100");
    return targets;
  }
  const Tensor places = right.logical_not().nonzero();
  if (places.size(0) == 0) return targets.to(weight.device());
  const int64_t place = places[0][0].item<int64_t>();
  fail("{}: targets[{}] is {}, but must be in [0, {}), or {} to leave the token out", operation,
       place, targets[place].item<int64_t>(), vocabulary, kIgnoredTarget);
}

// One chunk of tokens; its logits live only while it is worked on.
struct Chunk {
  int64_t start, rows;
  Tensor hidden_CD, logits_CV, targets_C;
};

// Calls f with one chunk after the other. The weight is float32 or better, `copy_VD` in hidden's
// dtype.
template <class F>
void for_each_chunk(const Tensor& hidden_MD, const Tensor& weight_VD, const Tensor& copy_VD,
                    const Tensor& targets_M, F f) {
  const int64_t tokens = hidden_MD.size(0);
  const int64_t most_rows = tokens_in_logits(weight_VD.size(0), weight_VD.device().type());
  for (int64_t start = 0; start < tokens; start += most_rows) {
    const int64_t rows = std::min(most_rows, tokens - start);
    const Tensor hidden_CD = hidden_MD.narrow(0, start, rows);
    f(Chunk{.start = start,
            .rows = rows,
            .hidden_CD = hidden_CD,
            .logits_CV = chunk_logits_table.of(hidden_CD)(hidden_CD, weight_VD, copy_VD),
            .targets_C = targets_M.narrow(0, start, rows)});
  }
}

Tensor loss_of_chunk(const Chunk& c, std::optional<double> scale, const Tensor& nll_M) {
  return chunk_loss_table.of(c.logits_CV)(
      c.logits_CV, c.targets_C, scale, c.hidden_CD.scalar_type(), nll_M.narrow(0, c.start, c.rows));
}

// In hidden's dtype; logits on a CPU need none.
Tensor copy_for_products(const Tensor& weight, const Tensor& hidden, bool hidden_needed) {
  return hidden_needed || !weight.is_cpu() ? weight.to(hidden.scalar_type()) : Tensor();
}

LossAndGradients fused(const Tensor& hidden, const Tensor& weight, const Tensor& targets_M,
                       double scale, bool hidden_needed, bool weight_needed) {
  const Tensor targets = checked_targets("linear_cross_entropy", targets_M, weight);
  const auto options = weight.options().dtype(compute_dtype(hidden));
  const Tensor weight_VD = weight.to(options.dtype());
  const Tensor nll_M = at::empty({hidden.size(0)}, options);
  const Tensor grad_hidden =
      hidden_needed ? at::empty(hidden.sizes(), hidden.options()) : at::empty({0}, options);
  Tensor grad_weight = weight_needed ? at::zeros(weight.sizes(), options) : at::empty({0}, options);
  const bool differentiate = hidden_needed || weight_needed;
  const std::optional<double> scale_of_gradient =
      differentiate ? std::optional(scale) : std::nullopt;
  const Tensor copy_VD = copy_for_products(weight, hidden, hidden_needed);
  for_each_chunk(hidden, weight_VD, copy_VD, targets, [&](const Chunk& c) {
    const Tensor grad_logits_CV = loss_of_chunk(c, scale_of_gradient, nll_M);
    if (hidden_needed) {
      grad_hidden.narrow(0, c.start, c.rows)
          .copy_(product(Product::input_gradient, grad_logits_CV, copy_VD));
    }
    if (weight_needed) {
      add_product(grad_weight, Product::weight_gradient, grad_logits_CV, c.hidden_CD);
    }
  });
  if (weight_needed) grad_weight = grad_weight.to(weight.scalar_type());
  return {nll_M.sum() * scale, grad_hidden, grad_weight};
}

LossAndGradients loss_meta(const Tensor& hidden, const Tensor& weight, const Tensor&, double,
                           bool hidden_needed, bool weight_needed) {
  const auto options = weight.options().dtype(compute_dtype(hidden));
  const Tensor none = at::empty({0}, options);
  return {at::empty({}, options),
          hidden_needed ? at::empty_symint(hidden.sym_sizes(), hidden.options()) : none,
          weight_needed ? at::empty_symint(weight.sym_sizes(), weight.options()) : none.clone()};
}

constexpr Operation<loss_meta> kLoss("attnres::linear_cross_entropy_fused");

// A saved gradient times the loss's own. It depends on both inputs, and how is not kept: a second
// derivative is an error rather than a zero.
class ScaledGradient : public torch::autograd::Function<ScaledGradient> {
 public:
  static Tensor forward(AutogradContext*, const Tensor& gradient, const Tensor& grad_loss,
                        const Tensor& /*hidden*/, const Tensor& /*weight*/) {
    return gradient * grad_loss.to(gradient.scalar_type());
  }

  static variable_list backward(AutogradContext*, const variable_list&) {
    fail(
        "linear_cross_entropy: its gradient cannot be differentiated again; take the first "
        "gradient without create_graph");
  }
};

class LinearCrossEntropyFunction : public torch::autograd::Function<LinearCrossEntropyFunction> {
 public:
  static variable_list forward(AutogradContext* context, const Tensor& hidden, const Tensor& weight,
                               const Tensor& targets, double scale, bool hidden_needed,
                               bool weight_needed) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    const auto [loss, grad_hidden, grad_weight] =
        kLoss->call(hidden, weight, targets, scale, hidden_needed, weight_needed);
    context->save_for_backward({hidden, weight, grad_hidden, grad_weight});
    context->mark_non_differentiable({grad_hidden, grad_weight});
    context->set_materialize_grads(false);
    context->saved_data["hidden_needed"] = hidden_needed;
    context->saved_data["weight_needed"] = weight_needed;
    return {loss, grad_hidden, grad_weight};
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    variable_list result(6);  // only hidden and weight have one
    if (!grads[0].defined()) return result;
    const variable_list saved = context->get_saved_variables();
    const bool needed[] = {context->saved_data["hidden_needed"].toBool(),
                           context->saved_data["weight_needed"].toBool()};
    for (size_t i = 0; i < 2; ++i) {
      if (needed[i]) result[i] = ScaledGradient::apply(saved[2 + i], grads[0], saved[0], saved[1]);
    }
    return result;
  }
};

LossAndGradients loss_autograd(const Tensor& hidden, const Tensor& weight, const Tensor& targets,
                               double scale, bool hidden_needed, bool weight_needed) {
  require_untransformed("linear_cross_entropy_fused", {hidden, weight});
  const variable_list results = LinearCrossEntropyFunction::apply(hidden, weight, targets, scale,
                                                                  hidden_needed, weight_needed);
  return {results[0], results[1], results[2]};
}

}  // namespace

int64_t tokens_in_logits(int64_t vocabulary, c10::DeviceType device) {
  constexpr int64_t kFewest = 64;
  const int64_t logits = int64_t{1} << (device == c10::kCPU ? 22 : 26);
  return std::max(kFewest, logits / vocabulary);
}

Tensor linear_cross_entropy(const Tensor& hidden_MD, const Tensor& weight_VD,
                            const Tensor& targets_M, double scale) {
  check_inputs("linear_cross_entropy", hidden_MD, weight_VD, targets_M);
  if (is_transformed({hidden_MD, weight_VD})) {
    return linear_cross_entropy_composed(hidden_MD, weight_VD, targets_M, scale);
  }
  const bool differentiate = at::GradMode::is_enabled();
  return std::get<0>(kLoss->call(hidden_MD, weight_VD, targets_M, scale,
                                 differentiate && hidden_MD.requires_grad(),
                                 differentiate && weight_VD.requires_grad()));
}

Tensor token_log_probabilities(const Tensor& hidden_MD, const Tensor& weight_VD,
                               const Tensor& targets_M) {
  const at::NoGradGuard no_grad;
  check_inputs("token_log_probabilities", hidden_MD, weight_VD, targets_M);
  const Tensor targets = checked_targets("token_log_probabilities", targets_M, weight_VD);
  const auto options = weight_VD.options().dtype(compute_dtype(hidden_MD));
  const Tensor nll_M = at::empty({hidden_MD.size(0)}, options),
               copy_VD = copy_for_products(weight_VD, hidden_MD, /*hidden_needed=*/false);
  for_each_chunk(hidden_MD, weight_VD.to(options.dtype()), copy_VD, targets,
                 [&](const Chunk& c) { loss_of_chunk(c, std::nullopt, nll_M); });
  return nll_M.neg_();
}

TORCH_LIBRARY_FRAGMENT(attnres, m) {
  m.def("linear_cross_entropy(Tensor hidden, Tensor weight, Tensor targets, float scale) -> Tensor",
        &linear_cross_entropy);
  m.def(
      "linear_cross_entropy_fused(Tensor hidden, Tensor weight, Tensor targets, float scale,"
      " bool hidden_needed, bool weight_needed)"
      " -> (Tensor loss, Tensor grad_hidden, Tensor grad_weight)");
}

TORCH_LIBRARY_IMPL(attnres, CompositeExplicitAutograd, m) {
  m.impl("linear_cross_entropy_fused", &fused);
}
TORCH_LIBRARY_IMPL(attnres, Meta, m) {
  m.impl("linear_cross_entropy_fused", &loss_meta);
}
TORCH_LIBRARY_IMPL(attnres, FuncTorchBatchedDecomposition, m) {
  m.impl("linear_cross_entropy", &linear_cross_entropy);
}
TORCH_LIBRARY_IMPL(attnres, Autograd, m) {
  m.impl("linear_cross_entropy_fused", &loss_autograd);
}

}  // namespace attnres
