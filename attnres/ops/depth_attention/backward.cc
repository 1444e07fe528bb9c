// The gradient of depth attention, by hand: beside the inputs only the depth weights, the scores
// and the sources' reciprocal RMS are kept, and one pass over the sources gives every gradient.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <optional>
#include <tuple>

#include "attnres/ops/depth_attention/fused.h"
#include "attnres/ops/depth_attention/needed_gradients.h"
#include "attnres/ops/once_differentiable.h"
#include "attnres/ops/transformed.h"

namespace attnres {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Of the sources that `source_needed` names, in order; of the query; of the key gain.
using Gradients = std::tuple<std::vector<Tensor>, Tensor, Tensor>;

using BackwardFunction = Gradients(const std::optional<Tensor>& grad_output,
                                   const std::optional<Tensor>& grad_weights,
                                   at::TensorList sources, const Tensor& query,
                                   const Tensor& key_gain, const Tensor& weights,
                                   const Tensor& scores, const Tensor& inverse_rms,
                                   c10::List<bool> source_needed);

const c10::TypedOperatorHandle<BackwardFunction>& backward_operation() {
  static const auto handle = c10::Dispatcher::singleton()
                                 .findSchemaOrThrow("attnres::depth_attention_fused_backward", "")
                                 .typed<BackwardFunction>();
  return handle;
}

Gradients backward_cpu(const std::optional<Tensor>& grad_output,
                       const std::optional<Tensor>& grad_weights, at::TensorList sources,
                       const Tensor& query, const Tensor& key_gain, const Tensor& weights,
                       const Tensor& scores, const Tensor& inverse_rms,
                       c10::List<bool> source_needed) {
  const at::ScalarType compute = compute_dtype(sources[0]);
  const std::vector<Tensor> grad_sources = allocate_gradients(sources, source_needed);
  const Tensor dh =
      grad_output ? grad_output->contiguous() : at::zeros_like(sources[0]).contiguous();
  const Tensor dalpha = grad_weights ? grad_weights->contiguous() : Tensor();
  const Tensor folded_query = fold_query(query, key_gain, compute);
  const int64_t width = sources[0].size(-1), tokens = sources[0].numel() / width;
  const auto N = static_cast<int64_t>(sources.size());
  Tensor grad_folded_query;

  with_storage_type(sources[0].scalar_type(), [&](auto storage) {
    using Storage = decltype(storage);
    using T = kernel::Compute<Storage>;
    const Rows<Storage> rows(sources);
    std::vector<Storage*> grad_pointers(sources.size(), nullptr);
    for (size_t n = 0, next = 0; n < sources.size(); ++n) {
      if (source_needed[n]) grad_pointers[n] = data<Storage>(grad_sources[next++]);
    }
    const std::vector<const T*> rms = slices<const T>(inverse_rms, N, tokens);
    const Flags accumulate(N, false);
    const Storage* const grad_outputs[] = {data<const Storage>(dh)};
    const kernel::DepthAttentionBackward<Storage> op{
        .inputs = {rows.pointers(), data<const T>(folded_query), N, 1, tokens, width},
        .inverse_rms_N = rms.data(),
        .scores_SNT = data<const T>(scores),
        .weights_SNT = data<const T>(weights),
        .grad_outputs_S = grad_outputs,
        .grad_sum_ST = nullptr,
        .grad_weights_SNT = dalpha.defined() ? data<const T>(dalpha) : nullptr,
        .grad_sources_N = grad_pointers.data(),
        .accumulate_N = accumulate.data()};
    grad_folded_query = sum_over_tokens(
        tokens, width, compute, [&](int64_t first, int64_t last, const Tensor& sums) {
          kernel::depth_attention_backward(op, first, last, data<T>(sums));
        });
  });
  return {grad_sources, at::mul(grad_folded_query, key_gain).to(query.scalar_type()),
          at::mul(grad_folded_query, query).to(key_gain.scalar_type())};
}

Gradients backward_meta(const std::optional<Tensor>&, const std::optional<Tensor>&,
                        at::TensorList sources, const Tensor& query, const Tensor& key_gain,
                        const Tensor&, const Tensor&, const Tensor&,
                        c10::List<bool> source_needed) {
  return {allocate_gradients(sources, source_needed), at::empty_like(query),
          at::empty_like(key_gain)};
}

// Function::apply takes only at::TensorList apart into inputs of the graph: a std::vector<Tensor>
// would get no gradient, and no error.
class DepthAttentionFunction : public torch::autograd::Function<DepthAttentionFunction> {
 public:
  static variable_list forward(AutogradContext* context, at::TensorList sources,
                               const Tensor& query, const Tensor& key_gain, double eps) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    const auto [output, weights, scores, inverse_rms] =
        depth_attention_fused(sources, query, key_gain, eps, /*give_weights=*/true,
                              /*for_backward=*/true);
    variable_list saved(sources.begin(), sources.end());
    saved.insert(saved.end(), {query, key_gain, weights, scores, inverse_rms});
    context->save_for_backward(saved);
    context->mark_non_differentiable({scores, inverse_rms});
    context->set_materialize_grads(false);
    return {output, weights, scores, inverse_rms};
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const size_t num_sources = saved.size() - 5;
    const at::TensorList sources = at::TensorList(saved).slice(0, num_sources);
    const Tensor *rest = &saved[num_sources], &query = rest[0], &key_gain = rest[1];
    variable_list result(num_sources + 3);  // eps has none
    if (!grads[0].defined() && !grads[1].defined()) return result;

    const c10::List<bool> source_needed = needed_inputs(context, 0, num_sources);
    const auto given = [](const Tensor& grad) {
      return grad.defined() ? std::make_optional(grad) : std::nullopt;
    };
    const auto [grad_sources, grad_query, grad_key_gain] =
        backward_operation().call(given(grads[0]), given(grads[1]), sources, query, key_gain,
                                  rest[2], rest[3], rest[4], source_needed);
    place_gradients(grad_sources, source_needed, result.begin());
    result[num_sources] = grad_query;
    result[num_sources + 1] = grad_key_gain;
    return result;
  }
};

FusedResult fused_autograd(at::TensorList sources, const Tensor& query, const Tensor& key_gain,
                           double eps, bool give_weights, bool for_backward) {
  variable_list inputs(sources.begin(), sources.end());
  inputs.insert(inputs.end(), {query, key_gain});
  require_untransformed("depth_attention_fused", inputs);
  if (for_backward) {
    const variable_list results = DepthAttentionFunction::apply(sources, query, key_gain, eps);
    return {results[0], results[1], results[2], results[3]};
  }
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return depth_attention_fused(sources, query, key_gain, eps, give_weights, for_backward);
}

TORCH_LIBRARY_FRAGMENT(attnres, m) {
  m.def(
      "depth_attention_fused_backward(Tensor? grad_output, Tensor? grad_weights, Tensor[] sources,"
      " Tensor query, Tensor key_gain, Tensor weights, Tensor scores, Tensor inverse_rms,"
      " bool[] source_needed)"
      " -> (Tensor[] grad_sources, Tensor grad_query, Tensor grad_key_gain)");
}

TORCH_LIBRARY_IMPL(attnres, CPU, m) {
  m.impl("depth_attention_fused_backward", &backward_cpu);
}
TORCH_LIBRARY_IMPL(attnres, Meta, m) {
  m.impl("depth_attention_fused_backward", &backward_meta);
}
TORCH_LIBRARY_IMPL(attnres, Autograd, m) {
  m.impl("depth_attention_fused", &fused_autograd);
  m.impl("depth_attention_fused_backward",
         torch::CppFunction::makeFromBoxedFunction<&once_differentiable>());
}

}  // namespace
}  // namespace attnres
