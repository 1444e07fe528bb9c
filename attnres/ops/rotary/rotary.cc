#include "attnres/ops/rotary/rotary.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>

#include "attnres/ops/operation.h"
#include "attnres/ops/tensors.h"
#include "attnres/ops/transformed.h"

namespace attnres {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

void check_rotary_inputs(const Tensor& x, const Tensor& cosine, const Tensor& sine) {
  if (x.dim() != 4 || x.sym_size(3) % 2 != 0) {
    fail("rotary: x must be [B, T, H, K] with an even K, but is {}", shape_of(x));
  }
  for (const Tensor& table : {cosine, sine}) {
    if (table.dim() != 3 || table.sym_size(0) != x.sym_size(1) || table.sym_size(1) != 1 ||
        table.sym_size(2) * 2 != x.sym_size(3) || table.scalar_type() != compute_dtype(x)) {
      fail("rotary: cosine and sine must be [T, 1, K/2] {} for x of {}, but one is {} {}",
           c10::toString(compute_dtype(x)), shape_of(x), shape_of(table),
           c10::toString(table.scalar_type()));
    }
    require(!table.requires_grad(), "rotary: cosine and sine are constants and get no gradient");
  }
  require_one_device("rotary", x, cosine, sine);
}

Tensor rotary_meta(const Tensor& x, const Tensor& /*cosine*/, const Tensor& /*sine*/) {
  return empty_like_rows(x);
}

constexpr Operation<rotary_meta> kRotary("attnres::rotary_fused");

// The gradient is turned back, by the operation itself.
class RotaryFunction : public torch::autograd::Function<RotaryFunction> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& cosine,
                        const Tensor& sine) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    context->save_for_backward({cosine, sine});
    return kRotary->call(x, cosine, sine);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    return {kRotary->call(gradients[0], saved[0], saved[1].neg()), Tensor(), Tensor()};
  }
};

Tensor rotary_autograd(const Tensor& x, const Tensor& cosine, const Tensor& sine) {
  require_untransformed("rotary_fused", {x, cosine, sine});
  return RotaryFunction::apply(x, cosine, sine);
}

}  // namespace

RotaryFrequencies rotary_frequencies(int64_t head_width, double theta) {
  RotaryFrequencies frequencies;
  for (int64_t c = 0; 2 * c < head_width; ++c) {
    const double exponent = static_cast<double>(-2 * c) / static_cast<double>(head_width);
    frequencies.of_pairs.push_back(std::pow(theta, exponent));
  }
  return frequencies;
}

RotaryTable rotary_table(int64_t position, int64_t tokens, const RotaryFrequencies& frequencies,
                         const at::TensorOptions& of_x) {
  const int64_t half = std::ssize(frequencies.of_pairs);
  const Tensor cosine = at::empty({tokens, 1, half}, at::kDouble), sine = at::empty_like(cosine);
  auto *cosines = cosine.mutable_data_ptr<double>(), *sines = sine.mutable_data_ptr<double>();
  constexpr int64_t kChannelsWorthAPair = 16;
  const int64_t work = std::max<int64_t>(1, kChannelsWorthAPair * half);
  parallel_over_tokens(tokens, work, [&](int64_t first, int64_t last) {
    for (int64_t t = first; t < last; ++t) {
      for (int64_t c = 0; c < half; ++c) {
        const double angle = static_cast<double>(position + t) * frequencies.of_pairs[c];
        cosines[t * half + c] = std::cos(angle) * frequencies.magnitude;
        sines[t * half + c] = std::sin(angle) * frequencies.magnitude;
      }
    }
  });
  const auto options = of_x.dtype(compute_dtype(c10::typeMetaToScalarType(of_x.dtype())));
  return {cosine.to(options), sine.to(options)};
}

namespace {

// A GPU's kernel has rows of half a head.
bool has_rotary_kernel(const Tensor& x_BTHK) {
  return has_row_kernel(x_BTHK) && (x_BTHK.device().is_cpu() || x_BTHK.size(3) % 16 == 0);
}

}  // namespace

Tensor apply_rotary(const Tensor& x_BTHK, const RotaryTable& table) {
  check_rotary_inputs(x_BTHK, table.cosine, table.sine);
  if (has_rotary_kernel(x_BTHK) && !is_transformed({x_BTHK, table.cosine, table.sine})) {
    return kRotary->call(x_BTHK, table.cosine, table.sine);
  }
  return rotary_composed(x_BTHK, table);
}

namespace {

Tensor rotary(const Tensor& x, const Tensor& cosine, const Tensor& sine) {
  return apply_rotary(x, {cosine, sine});
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(attnres, m) {
  m.def("rotary(Tensor x, Tensor cosine, Tensor sine) -> Tensor", &rotary);
  m.def("rotary_fused(Tensor x, Tensor cosine, Tensor sine) -> Tensor");
}

TORCH_LIBRARY_IMPL(attnres, Meta, m) {
  m.impl("rotary_fused", &rotary_meta);
}
TORCH_LIBRARY_IMPL(attnres, FuncTorchBatchedDecomposition, m) {
  m.impl("rotary", &rotary);
}
TORCH_LIBRARY_IMPL(attnres, Autograd, m) {
  m.impl("rotary_fused", &rotary_autograd);
}

}  // namespace attnres
