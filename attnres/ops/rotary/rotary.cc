#include "attnres/ops/rotary/rotary.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <cmath>
#include <map>
#include <mutex>
#include <utility>

#include "attnres/ops/rotary/kernel.h"
#include "attnres/ops/tensors.h"
#include "attnres/ops/transformed.h"

namespace attnres {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

RotaryTable make_table(int64_t tokens, const RotaryFrequencies& frequencies,
                       at::ScalarType compute) {
  const auto options = at::TensorOptions().dtype(at::kDouble);
  const Tensor of_pairs = at::tensor(frequencies.of_pairs, options);
  const Tensor angles = at::outer(at::arange(tokens, options), of_pairs).unsqueeze(1);
  return {(angles.cos() * frequencies.magnitude).to(compute),
          (angles.sin() * frequencies.magnitude).to(compute)};
}

using RotaryFused = Tensor(const Tensor& x, const Tensor& cosine, const Tensor& sine);

const c10::TypedOperatorHandle<RotaryFused>& rotary_operation() {
  static const auto handle = c10::Dispatcher::singleton()
                                 .findSchemaOrThrow("attnres::rotary_fused", "")
                                 .typed<RotaryFused>();
  return handle;
}

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
}

Tensor rotary_meta(const Tensor& x, const Tensor& /*cosine*/, const Tensor& /*sine*/) {
  return empty_like_rows(x);
}

Tensor rotary_cpu(const Tensor& x, const Tensor& cosine, const Tensor& sine) {
  const Tensor rows = x.contiguous(), y = empty_like_rows(x);
  const Tensor cosine_rows = cosine.contiguous(), sine_rows = sine.contiguous();
  with_storage_type(x.scalar_type(), [&](auto storage) {
    using Storage = decltype(storage);
    using T = kernel::Compute<Storage>;
    const kernel::Rotary<Storage> op{.num_tokens = x.size(1),
                                     .heads = x.size(2),
                                     .half = x.size(3) / 2,
                                     .cosine = data<const T>(cosine_rows),
                                     .sine = data<const T>(sine_rows),
                                     .x = data<const Storage>(rows),
                                     .y = data<Storage>(y)};
    parallel_over_tokens(x.size(0) * x.size(1), std::max<int64_t>(1, x.size(2) * x.size(3)),
                         [&](int64_t first, int64_t last) { kernel::rotary(op, first, last); });
  });
  return y;
}

// The gradient is turned back, by the operation itself.
class RotaryFunction : public torch::autograd::Function<RotaryFunction> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& cosine,
                        const Tensor& sine) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    context->save_for_backward({cosine, sine});
    return rotary_operation().call(x, cosine, sine);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    return {rotary_operation().call(gradients[0], saved[0], saved[1].neg()), Tensor(), Tensor()};
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
                         at::ScalarType dtype) {
  static std::mutex mutex;
  static std::map<std::pair<RotaryFrequencies, at::ScalarType>, RotaryTable> tables;
  const at::ScalarType compute = compute_dtype(dtype);
  const std::lock_guard lock(mutex);
  RotaryTable& table = tables[{frequencies, compute}];
  const int64_t needed = position + tokens;
  if (!table.cosine.defined() || table.cosine.size(0) < needed) {
    const at::NoGradGuard no_grad;
    const int64_t now = table.cosine.defined() ? table.cosine.size(0) : 0;
    table = make_table(std::max(needed, 2 * now), frequencies, compute);
  }
  return {table.cosine.narrow(0, position, tokens), table.sine.narrow(0, position, tokens)};
}

Tensor apply_rotary(const Tensor& x_BTHK, const RotaryTable& table) {
  check_rotary_inputs(x_BTHK, table.cosine, table.sine);
  if (has_kernel(x_BTHK) && has_kernel(table.cosine) && has_kernel(table.sine) &&
      !is_transformed({x_BTHK, table.cosine, table.sine})) {
    return rotary_operation().call(x_BTHK, table.cosine, table.sine);
  }
  const Tensor cosine = table.cosine.to(x_BTHK.options()), sine = table.sine.to(x_BTHK.options());
  const auto halves = x_BTHK.chunk(2, -1);
  const Tensor &a = halves[0], &b = halves[1];
  return at::cat({a * cosine - b * sine, b * cosine + a * sine}, -1);
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

TORCH_LIBRARY_IMPL(attnres, CPU, m) {
  m.impl("rotary_fused", &rotary_cpu);
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
