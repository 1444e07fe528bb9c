#include "attnres/ops/depth_attention/depth_attention.h"

#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <tuple>

#include "attnres/ops/depth_attention/fused.h"
#include "attnres/ops/depth_attention/kernel.h"
#include "attnres/ops/once_differentiable.h"
#include "attnres/ops/operation.h"
#include "attnres/ops/tensors.h"
#include "attnres/ops/transformed.h"

namespace attnres {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

void check_vector(const char* name, const at::Tensor& vector, const at::Tensor& source) {
  if (vector.dim() != 1 || vector.sym_size(0) != source.sym_size(-1)) {
    fail("depth_attention: {} must be [D], D the sources' last size; it is {}, the sources {}",
         name, shape_of(vector), shape_of(source));
  }
  if (vector.scalar_type() != source.scalar_type() && vector.scalar_type() != at::kFloat) {
    fail("depth_attention: {} must be {} like the sources, or float32, but is {}", name,
         c10::toString(source.scalar_type()), c10::toString(vector.scalar_type()));
  }
  if (!same_device(vector.device(), source.device())) {
    fail("depth_attention: {} is on {}, the sources on {}; move it there", name,
         vector.device().str(), source.device().str());
  }
}

void check_inputs(at::TensorList sources, const at::Tensor& query, const at::Tensor& key_gain,
                  double eps) {
  require(!sources.empty(), "depth_attention: sources is empty; it needs at least one tensor");
  const at::Tensor& first = sources[0];
  for (size_t i = 0; i < sources.size(); ++i) {
    const at::Tensor& source = sources[i];
    require(source.defined(), "depth_attention: source {} is undefined", i);
    if (source.dim() < 1 || source.sym_sizes() != first.sym_sizes()) {
      fail("depth_attention: source {} has shape {}, source 0 has {}; all must be one [..., D]", i,
           shape_of(source), shape_of(first));
    }
    if (source.scalar_type() != first.scalar_type() ||
        !same_device(source.device(), first.device())) {
      fail("depth_attention: source {} is {} on {}, source 0 is {} on {}; all must be alike", i,
           c10::toString(source.scalar_type()), source.device().str(),
           c10::toString(first.scalar_type()), first.device().str());
    }
  }
  require(at::isFloatingType(first.scalar_type()),
          "depth_attention: sources must be of a floating dtype, not {}",
          c10::toString(first.scalar_type()));
  if (first.sym_size(-1) < 1) fail("depth_attention: sources have no channels: D must be positive");
  check_vector("query", query, first);
  check_vector("key_gain", key_gain, first);
  require(eps > 0, "depth_attention: eps must be positive, but is {}", eps);
}

FusedResult fused_meta(at::TensorList sources, const at::Tensor&, const at::Tensor&, double,
                       bool give_weights, bool for_backward) {
  return allocate_fused(sources, give_weights, for_backward);
}

// The gradients of the sources that `source_needed` names, in order; of the query; of the key gain.
std::tuple<std::vector<at::Tensor>, at::Tensor, at::Tensor> fused_backward_meta(
    const std::optional<at::Tensor>&, const std::optional<at::Tensor>&, at::TensorList sources,
    const at::Tensor& query, const at::Tensor& key_gain, const at::Tensor&, const at::Tensor&,
    const at::Tensor&, const c10::List<bool>& source_needed) {
  return {allocate_gradients(sources, source_needed), at::empty_like(query),
          at::empty_like(key_gain)};
}

constexpr Operation<fused_meta> kDepthAttention("attnres::depth_attention_fused");
constexpr Operation<fused_backward_meta> kDepthAttentionBackward(
    "attnres::depth_attention_fused_backward");

// Function::apply takes only at::TensorList apart into inputs of the graph: a std::vector<Tensor>
// would get no gradient, and no error.
class DepthAttentionFunction : public torch::autograd::Function<DepthAttentionFunction> {
 public:
  static variable_list forward(AutogradContext* context, at::TensorList sources,
                               const at::Tensor& query, const at::Tensor& key_gain, double eps) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    const auto [output, weights, scores, inverse_rms] =
        kDepthAttention->call(sources, query, key_gain, eps, /*give_weights=*/true,
                              /*for_backward=*/true);
    context->save_for_backward(in_one_list(sources, query, key_gain, weights, scores, inverse_rms));
    context->mark_non_differentiable({scores, inverse_rms});
    context->set_materialize_grads(false);
    return {output, weights, scores, inverse_rms};
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const size_t num_sources = saved.size() - 5;
    const at::TensorList sources = at::TensorList(saved).slice(0, num_sources);
    const at::Tensor *rest = &saved[num_sources], &query = rest[0], &key_gain = rest[1];
    variable_list result(num_sources + 3);  // eps has none
    if (!grads[0].defined() && !grads[1].defined()) return result;

    const c10::List<bool> source_needed = needed_inputs(context, 0, num_sources);
    const auto [grad_sources, grad_query, grad_key_gain] =
        kDepthAttentionBackward->call(given(grads[0]), given(grads[1]), sources, query, key_gain,
                                      rest[2], rest[3], rest[4], source_needed);
    place_gradients(grad_sources, source_needed, result.begin());
    result[num_sources] = grad_query;
    result[num_sources + 1] = grad_key_gain;
    return result;
  }
};

FusedResult fused_autograd(at::TensorList sources, const at::Tensor& query,
                           const at::Tensor& key_gain, double eps, bool give_weights,
                           bool for_backward) {
  require_untransformed("depth_attention_fused", in_one_list(sources, query, key_gain));
  if (for_backward) {
    const variable_list results = DepthAttentionFunction::apply(sources, query, key_gain, eps);
    return {results[0], results[1], results[2], results[3]};
  }
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return kDepthAttention->call(sources, query, key_gain, eps, give_weights, for_backward);
}

DepthAttentionResult checked_depth_attention(at::TensorList sources, const at::Tensor& query,
                                             const at::Tensor& key_gain, double eps,
                                             bool give_weights) {
  check_inputs(sources, query, key_gain, eps);
  const std::vector<at::Tensor> inputs = in_one_list(sources, query, key_gain);
  if (!can_fuse_depth_attention(sources) || is_transformed(inputs)) {
    return depth_attention_composed(sources, query, key_gain, eps);
  }
  const FusedResult result =
      kDepthAttention->call(sources, query, key_gain, eps, give_weights, records(inputs));
  return {std::get<0>(result), std::get<1>(result)};
}

at::Tensor composed_output(at::TensorList sources, const at::Tensor& query,
                           const at::Tensor& key_gain, double eps) {
  check_inputs(sources, query, key_gain, eps);
  return depth_attention_composed(sources, query, key_gain, eps).output;
}

}  // namespace

bool same_device(at::Device a, at::Device b) {
  return a.type() == b.type() && (a.index() == b.index() || !a.has_index() || !b.has_index());
}

FusedResult allocate_fused(at::TensorList sources, bool give_weights, bool for_backward) {
  const auto N = static_cast<int64_t>(sources.size());
  const auto per_source = [&](bool wanted) {
    return wanted ? empty_per_token(sources[0], N) : empty_result(sources[0]);
  };
  return {empty_like_rows(sources[0]), per_source(give_weights || for_backward),
          per_source(for_backward), per_source(for_backward)};
}

c10::List<bool> needed_inputs(AutogradContext* context, size_t first, size_t count) {
  c10::List<bool> needed;
  for (size_t n = 0; n < count; ++n) needed.push_back(context->needs_input_grad(first + n));
  return needed;
}

std::vector<at::Tensor> allocate_gradients(at::TensorList sources, const c10::List<bool>& needed) {
  std::vector<at::Tensor> gradients;
  for (size_t n = 0; n < sources.size(); ++n) {
    if (needed[n]) gradients.push_back(empty_like_rows(sources[n]));
  }
  return gradients;
}

void place_gradients(const std::vector<at::Tensor>& gradients, const c10::List<bool>& needed,
                     std::vector<at::Tensor>::iterator to) {
  for (size_t n = 0, next = 0; n < needed.size(); ++n, ++to) {
    if (needed[n]) *to = gradients[next++];
  }
}

std::vector<std::string> depth_attention_instruction_sets() {
  return kernel::instruction_sets();
}

bool can_fuse_depth_attention(at::TensorList sources) {
  constexpr size_t kMostSourcesOnGpu = 256;  // of cuda_rows.h
  return (sources.size() <= kMostSourcesOnGpu || !sources.front().is_cuda()) &&
         std::all_of(sources.begin(), sources.end(), has_row_kernel);
}

at::Tensor depth_attention(at::TensorList sources, const at::Tensor& query,
                           const at::Tensor& key_gain, double eps) {
  return checked_depth_attention(sources, query, key_gain, eps, /*give_weights=*/false).output;
}

at::Tensor depth_attention_weights(at::TensorList sources, const at::Tensor& query,
                                   const at::Tensor& key_gain, double eps) {
  return checked_depth_attention(sources, query, key_gain, eps, /*give_weights=*/true).weights;
}

// The public operations decompose into the fused one, which has the kernels and a gradient by hand,
// or into tensor operations.
TORCH_LIBRARY_FRAGMENT(attnres, m) {
  m.def("depth_attention(Tensor[] sources, Tensor query, Tensor key_gain, float eps) -> Tensor",
        &depth_attention);
  m.def(
      "depth_attention_weights(Tensor[] sources, Tensor query, Tensor key_gain, float eps)"
      " -> Tensor",
      &depth_attention_weights);
  m.def(
      "depth_attention_composed(Tensor[] sources, Tensor query, Tensor key_gain, float eps)"
      " -> Tensor",
      &composed_output);
  m.def(
      "depth_attention_fused(Tensor[] sources, Tensor query, Tensor key_gain, float eps,"
      " bool give_weights, bool for_backward)"
      " -> (Tensor output, Tensor weights, Tensor scores, Tensor inverse_rms)");
  m.def(
      "depth_attention_fused_backward(Tensor? grad_output, Tensor? grad_weights, Tensor[] sources,"
      " Tensor query, Tensor key_gain, Tensor weights, Tensor scores, Tensor inverse_rms,"
      " bool[] source_needed)"
      " -> (Tensor[] grad_sources, Tensor grad_query, Tensor grad_key_gain)");
}

TORCH_LIBRARY_IMPL(attnres, Meta, m) {
  m.impl("depth_attention_fused", &fused_meta);
  m.impl("depth_attention_fused_backward", &fused_backward_meta);
}
TORCH_LIBRARY_IMPL(attnres, Autograd, m) {
  m.impl("depth_attention_fused", &fused_autograd);
  implement_once_differentiable(m, {"depth_attention_fused_backward"});
}
TORCH_LIBRARY_IMPL(attnres, FuncTorchBatchedDecomposition, m) {
  m.impl("depth_attention", &depth_attention);
  m.impl("depth_attention_weights", &depth_attention_weights);
  m.impl("depth_attention_composed", &composed_output);
}

}  // namespace attnres
