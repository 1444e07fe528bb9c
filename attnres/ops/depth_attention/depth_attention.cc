#include "attnres/ops/depth_attention/depth_attention.h"

#include <torch/library.h>

#include <algorithm>
#include <tuple>

#include "attnres/ops/depth_attention/fused.h"
#include "attnres/ops/transformed.h"

namespace attnres {
namespace {

void check_vector(const char* name, const at::Tensor& vector, const at::Tensor& source) {
  if (vector.dim() != 1 || vector.sym_size(0) != source.sym_size(-1)) {
    fail("depth_attention: {} must be [D], D the sources' last size; it is {}, the sources {}",
         name, shape_of(vector), shape_of(source));
  }
  if (vector.scalar_type() != source.scalar_type() && vector.scalar_type() != at::kFloat) {
    fail("depth_attention: {} must be {} like the sources, or float32, but is {}", name,
         c10::toString(source.scalar_type()), c10::toString(vector.scalar_type()));
  }
  if (vector.device() != source.device()) {
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
    if (source.scalar_type() != first.scalar_type() || source.device() != first.device()) {
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
  const auto N = static_cast<int64_t>(sources.size());
  const auto per_source = [&](bool wanted) {
    return wanted ? empty_per_token(sources[0], N) : empty_result(sources[0]);
  };
  return {empty_like_rows(sources[0]), per_source(give_weights || for_backward),
          per_source(for_backward), per_source(for_backward)};
}

FusedResult fused_cpu(at::TensorList sources, const at::Tensor& query, const at::Tensor& key_gain,
                      double eps, bool give_weights, bool for_backward) {
  const FusedResult result = fused_meta(sources, query, key_gain, eps, give_weights, for_backward);
  const auto& [output, weights, scores, inverse_rms] = result;
  const int64_t width = sources[0].size(-1), tokens = tokens_of(sources[0]);
  const auto N = static_cast<int64_t>(sources.size());
  const at::Tensor folded_query = fold_query(query, key_gain, compute_dtype(sources[0]));
  with_storage_type(sources[0].scalar_type(), [&](auto storage) {
    using Storage = decltype(storage);
    using T = kernel::Compute<Storage>;
    const Rows<Storage> rows(sources);
    const std::vector<T*> rms =
        for_backward ? slices<T>(inverse_rms, N, tokens) : std::vector<T*>(N, nullptr);
    const Flags rms_known(N, false);
    Storage* const outputs[] = {data<Storage>(output)};
    const kernel::DepthAttentionForward<Storage> op{
        .inputs = {rows.pointers(), data<const T>(folded_query), N, 1, tokens, width},
        .eps = eps,
        .complete = true,
        .inverse_rms_N = rms.data(),
        .rms_known_N = rms_known.data(),
        .outputs_S = outputs,
        .max_ST = nullptr,
        .sum_ST = nullptr,
        .scores_SNT = data<T>(scores),
        .weights_SNT = data<T>(weights)};
    parallel_over_tokens(tokens, N * width, [&](int64_t first, int64_t last) {
      kernel::depth_attention_forward(op, first, last);
    });
  });
  return result;
}

DepthAttentionResult checked_depth_attention(at::TensorList sources, const at::Tensor& query,
                                             const at::Tensor& key_gain, double eps,
                                             bool give_weights) {
  check_inputs(sources, query, key_gain, eps);
  std::vector<at::Tensor> inputs(sources.begin(), sources.end());
  inputs.insert(inputs.end(), {query, key_gain});
  if (!can_fuse_depth_attention(sources) || is_transformed(inputs)) {
    return depth_attention_composed(sources, query, key_gain, eps);
  }
  const FusedResult result =
      depth_attention_fused(sources, query, key_gain, eps, give_weights, records(inputs));
  return {std::get<0>(result), std::get<1>(result)};
}

at::Tensor composed_output(at::TensorList sources, const at::Tensor& query,
                           const at::Tensor& key_gain, double eps) {
  check_inputs(sources, query, key_gain, eps);
  return depth_attention_composed(sources, query, key_gain, eps).output;
}

}  // namespace

FusedResult depth_attention_fused(at::TensorList sources, const at::Tensor& query,
                                  const at::Tensor& key_gain, double eps, bool give_weights,
                                  bool for_backward) {
  static const auto operation = c10::Dispatcher::singleton()
                                    .findSchemaOrThrow("attnres::depth_attention_fused", "")
                                    .typed<decltype(depth_attention_fused)>();
  return operation.call(sources, query, key_gain, eps, give_weights, for_backward);
}

std::vector<std::string> depth_attention_instruction_sets() {
  return kernel::instruction_sets();
}

bool can_fuse_depth_attention(at::TensorList sources) {
  return std::all_of(sources.begin(), sources.end(), has_kernel);
}

at::Tensor depth_attention(at::TensorList sources, const at::Tensor& query,
                           const at::Tensor& key_gain, double eps) {
  return checked_depth_attention(sources, query, key_gain, eps, /*give_weights=*/false).output;
}

at::Tensor depth_attention_weights(at::TensorList sources, const at::Tensor& query,
                                   const at::Tensor& key_gain, double eps) {
  return checked_depth_attention(sources, query, key_gain, eps, /*give_weights=*/true).weights;
}

// The public operations decompose into the fused one, which has the kernels and the gradient
// (backward.cc), or into tensor operations.
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
}

TORCH_LIBRARY_IMPL(attnres, CPU, m) {
  m.impl("depth_attention_fused", &fused_cpu);
}
TORCH_LIBRARY_IMPL(attnres, Meta, m) {
  m.impl("depth_attention_fused", &fused_meta);
}
TORCH_LIBRARY_IMPL(attnres, FuncTorchBatchedDecomposition, m) {
  m.impl("depth_attention", &depth_attention);
  m.impl("depth_attention_weights", &depth_attention_weights);
  m.impl("depth_attention_composed", &composed_output);
}

}  // namespace attnres
