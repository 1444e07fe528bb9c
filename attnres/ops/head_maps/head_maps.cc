#include "attnres/ops/head_maps/head_maps.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "attnres/ops/operation.h"
#include "attnres/ops/tensors.h"
#include "attnres/ops/transformed.h"
#include "attnres/support/error.h"

namespace attnres {
namespace {

using at::Tensor;

Tensor head_maps_meta(const Tensor& x, const Tensor& w, bool transposed) {
  return at::empty_symint({x.sym_size(0), x.sym_size(1), w.sym_size(transposed ? 2 : 1)},
                          x.options().requires_grad(false));
}

constexpr Operation<head_maps_meta> kHeadMaps("attnres::head_maps_fused");

Tensor head_maps_autograd(const Tensor& x, const Tensor& w, bool transposed) {
  require_untransformed("head_maps_fused", {x, w});
  require(!records({x, w}), "head_maps_fused: it has no backward; use head_maps");
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return kHeadMaps->call(x, w, transposed);
}

Tensor map_each_head(const Tensor& x, const Tensor& w, bool transposed) {
  const auto type = x.scalar_type();
  if (x.dim() != 3 || w.dim() != 3 || x.sym_size(1) != w.sym_size(0) ||
      x.sym_size(2) != w.sym_size(transposed ? 1 : 2) || type != w.scalar_type() ||
      (type != at::kFloat && type != at::kDouble && type != at::kBFloat16) ||
      x.device() != w.device() || x.sym_numel() == 0 || w.sym_numel() == 0) {
    fail(
        "head maps: expected x [T, H, {}] and W [H, N, K] of float32, float64 or bfloat16 on one "
        "device; they are {} and {}",
        transposed ? "N" : "K", described(x), described(w));
  }
  if (!has_kernel(x) || type == at::kDouble || is_transformed({x, w}) || records({x, w})) {
    return head_maps_composed(x, w, transposed);
  }
  return call_operation(*kHeadMaps, x, w, transposed);
}

}  // namespace

Tensor head_maps(const Tensor& x_THK, const Tensor& w_HNK) {
  return map_each_head(x_THK, w_HNK, /*transposed=*/false);
}

Tensor transposed_head_maps(const Tensor& x_THN, const Tensor& w_HNK) {
  return map_each_head(x_THN, w_HNK, /*transposed=*/true);
}

TORCH_LIBRARY_FRAGMENT(attnres, m) {
  m.def("head_maps(Tensor x, Tensor weight) -> Tensor", &head_maps);
  m.def("transposed_head_maps(Tensor x, Tensor weight) -> Tensor", &transposed_head_maps);
  m.def("head_maps_fused(Tensor x, Tensor weight, bool transposed) -> Tensor");
}

TORCH_LIBRARY_IMPL(attnres, Meta, m) {
  m.impl("head_maps_fused", &head_maps_meta);
}
TORCH_LIBRARY_IMPL(attnres, FuncTorchBatchedDecomposition, m) {
  m.impl("head_maps", &head_maps);
  m.impl("transposed_head_maps", &transposed_head_maps);
}
TORCH_LIBRARY_IMPL(attnres, Autograd, m) {
  m.impl("head_maps_fused", &head_maps_autograd);
}

}  // namespace attnres
