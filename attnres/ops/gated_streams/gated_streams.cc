#include "attnres/ops/gated_streams/gated_streams.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sigmoid.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <array>
#include <optional>
#include <tuple>

#include "attnres/ops/gradient_slot.h"
#include "attnres/ops/once_differentiable.h"
#include "attnres/ops/operation.h"
#include "attnres/ops/tensors.h"
#include "attnres/ops/transformed.h"

namespace attnres {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// x [T, D], and the rows of A and of W times z: [T, R].
std::tuple<Tensor, Tensor> read_meta(const Tensor& streams_TND, const Tensor& norm_ND,
                                     const Tensor& project_RC, const Tensor& /*up_CK*/,
                                     double /*eps*/) {
  const c10::SymInt T = streams_TND.sym_size(0);
  return {
      at::empty_symint({T, streams_TND.sym_size(2)}, streams_TND.options().requires_grad(false)),
      at::empty_symint({T, project_RC.sym_size(0)}, norm_ND.options().requires_grad(false))};
}

// The gradients of the maps. That of the streams, where it is wanted, is put into `grad_streams`,
// or added to what is there.
std::tuple<Tensor, Tensor, Tensor> read_backward_meta(
    const Tensor& /*grad_x_TD*/, const Tensor& /*grad_projected_TR*/, const Tensor& /*streams_TND*/,
    const Tensor& norm_ND, const Tensor& project_RC, const Tensor& up_CK,
    const Tensor& /*projected_TR*/, double /*eps*/, const std::optional<Tensor>& /*grad_streams*/,
    bool /*accumulate*/) {
  return {empty_like_rows(norm_ND), empty_like_rows(project_RC), empty_like_rows(up_CK)};
}

constexpr Operation<read_meta> kRead("attnres::read_gated_streams_fused");
constexpr Operation<read_backward_meta> kReadBackward("attnres::read_gated_streams_fused_backward");

class ReadFunction : public torch::autograd::Function<ReadFunction> {
 public:
  static variable_list forward(AutogradContext* context, const Tensor& streams_TND,
                               const Tensor& norm_ND, const Tensor& project_RC, const Tensor& up_CK,
                               double eps) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const auto [x_TD, projected_TR] = kRead->call(streams_TND, norm_ND, project_RC, up_CK, eps);
    context->save_for_backward({streams_TND, norm_ND, project_RC, up_CK, projected_TR});
    context->saved_data["eps"] = eps;
    return {x_TD, projected_TR};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const SourceGradient grad_streams(saved[0], context->needs_input_grad(0));
    const auto [grad_norm, grad_project, grad_up] =
        kReadBackward->call(gradients[0], gradients[1], saved[0], saved[1], saved[2], saved[3],
                            saved[4], context->saved_data["eps"].toDouble(),
                            given(grad_streams.sum()), grad_streams.accumulate());
    return {grad_streams.to_return(), grad_norm, grad_project, grad_up, Tensor()};
  }
};

std::tuple<Tensor, Tensor> read_autograd(const Tensor& streams_TND, const Tensor& norm_ND,
                                         const Tensor& project_RC, const Tensor& up_CK,
                                         double eps) {
  require_untransformed("read_gated_streams_fused", {streams_TND, norm_ND, project_RC, up_CK});
  const variable_list results = ReadFunction::apply(streams_TND, norm_ND, project_RC, up_CK, eps);
  return {results[0], results[1]};
}

void check_map(const Tensor& streams_TND, const char* map_is, const Tensor& map,
               const std::array<c10::SymInt, 2>& sizes) {
  if (map.sym_sizes() == c10::SymIntArrayRef(sizes) && map.device() == streams_TND.device()) return;
  fail("read_gated_streams: of streams [T, n, D] {} on {} {} there; it is {}",
       shape_of(streams_TND), streams_TND.device().str(), map_is, described(map));
}

void check_inputs(const Tensor& streams_TND, const GatedStreamsMaps& maps) {
  if (!at::isFloatingType(streams_TND.scalar_type()) || streams_TND.dim() != 3 ||
      streams_TND.sym_size(1) < 1 || streams_TND.sym_size(2) < 1) {
    fail("read_gated_streams: expected streams [T, n, D] of a floating dtype; they are {}",
         described(streams_TND));
  }
  const c10::SymInt n = streams_TND.sym_size(1), D = streams_TND.sym_size(2), C = n * D;
  const c10::SymInt K = maps.down_KC.dim() == 2 ? maps.down_KC.sym_size(0) : 1;
  check_map(streams_TND, "the norm's gains must be [n, D]", maps.norm_ND, {n, D});
  check_map(streams_TND, "the map down must be [K, n D]", maps.down_KC, {K, C});
  check_map(streams_TND, "the map up must be [n D, K]", maps.up_CK, {C, K});
  if (maps.write_NC.defined())
    check_map(streams_TND, "the map to write by must be [n, n D]", maps.write_NC, {n, C});
}

}  // namespace

GatedStreamsRead read_gated_streams(const Tensor& streams_TND, const GatedStreamsMaps& maps,
                                    double eps) {
  check_inputs(streams_TND, maps);
  const auto& [norm_ND, down_KC, up_CK, write_NC] = maps;
  if (!has_kernel(streams_TND) ||
      is_transformed({streams_TND, norm_ND, down_KC, up_CK, write_NC})) {
    return read_gated_streams_composed(streams_TND, maps, eps);
  }
  const at::ScalarType wide = compute_dtype(streams_TND);
  Tensor project_RC = down_KC.to(wide);
  if (write_NC.defined()) project_RC = at::cat({project_RC, write_NC.to(wide)});
  const auto [x_TD, projected_TR] =
      call_operation(*kRead, streams_TND, norm_ND.to(wide), project_RC, up_CK.to(wide), eps);
  if (!write_NC.defined()) return {x_TD, {}};
  const c10::SymInt K = down_KC.sym_size(0), n = streams_TND.sym_size(1);
  return {x_TD, at::sigmoid(projected_TR.narrow_symint(1, K, n))};
}

namespace {

std::tuple<Tensor, Tensor> read_tensors(const Tensor& streams_TND, const Tensor& norm_ND,
                                        const Tensor& down_KC, const Tensor& up_CK,
                                        const Tensor& write_NC, double eps) {
  const auto [x_TD, write_TN] =
      read_gated_streams(streams_TND, {norm_ND, down_KC, up_CK, write_NC}, eps);
  return {x_TD, write_TN};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(attnres, m) {
  m.def(
      "read_gated_streams(Tensor streams, Tensor norm, Tensor down, Tensor up, Tensor write,"
      " float eps) -> (Tensor x, Tensor write)",
      &read_tensors);
  m.def(
      "read_gated_streams_fused(Tensor streams, Tensor norm, Tensor project, Tensor up, float eps)"
      " -> (Tensor x, Tensor projected)");
  m.def(
      "read_gated_streams_fused_backward(Tensor grad_x, Tensor grad_projected, Tensor streams,"
      " Tensor norm, Tensor project, Tensor up, Tensor projected, float eps,"
      " Tensor(a!)? grad_streams, bool accumulate)"
      " -> (Tensor grad_norm, Tensor grad_project, Tensor grad_up)");
}

TORCH_LIBRARY_IMPL(attnres, Meta, m) {
  m.impl("read_gated_streams_fused", &read_meta);
  m.impl("read_gated_streams_fused_backward", &read_backward_meta);
}
TORCH_LIBRARY_IMPL(attnres, FuncTorchBatchedDecomposition, m) {
  m.impl("read_gated_streams", &read_tensors);
}
TORCH_LIBRARY_IMPL(attnres, Autograd, m) {
  m.impl("read_gated_streams_fused", &read_autograd);
  implement_once_differentiable(m, {"read_gated_streams_fused_backward"});
}

}  // namespace attnres
