#include "attnres/ops/rotary/rotary.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <map>
#include <mutex>
#include <tuple>

#include "attnres/ops/rotary/kernel.h"
#include "attnres/ops/tensors.h"

namespace attnres {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

RotaryTable make_table(int64_t tokens, int64_t head_width, double theta, at::ScalarType compute) {
  const auto options = at::TensorOptions().dtype(at::kDouble);
  const Tensor exponents = at::arange(0, head_width, 2, options) / double(head_width);
  const Tensor angles =
      at::outer(at::arange(tokens, options), at::pow(theta, -exponents)).unsqueeze(1);
  return {angles.cos().to(compute), angles.sin().to(compute)};
}

Tensor turn(const Tensor& x, const Tensor& cosine, const Tensor& sine) {
  const Tensor rows = x.contiguous(), y = empty_like_rows(x);
  with_storage_type(x.scalar_type(), [&](auto storage) {
    using Storage = decltype(storage);
    using T = kernel::Compute<Storage>;
    const kernel::Rotary<Storage> op{.num_tokens = x.size(1),
                                     .heads = x.size(2),
                                     .half = x.size(3) / 2,
                                     .cosine = data<const T>(cosine),
                                     .sine = data<const T>(sine),
                                     .x = data<const Storage>(rows),
                                     .y = data<Storage>(y)};
    parallel_over_tokens(x.size(0) * x.size(1), x.size(2) * x.size(3),
                         [&](int64_t first, int64_t last) { kernel::rotary(op, first, last); });
  });
  return y;
}

class RotaryFunction : public torch::autograd::Function<RotaryFunction> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& cosine,
                        const Tensor& sine) {
    context->save_for_backward({cosine, sine});
    return turn(x, cosine, sine);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    // The turn back.
    return {RotaryFunction::apply(gradients[0], saved[0], saved[1].neg()), Tensor(), Tensor()};
  }
};

}  // namespace

RotaryTable rotary_table(int64_t position, int64_t tokens, int64_t head_width, double theta,
                         at::ScalarType dtype) {
  static std::mutex mutex;
  static std::map<std::tuple<int64_t, double, at::ScalarType>, RotaryTable> tables;
  const at::ScalarType compute = dtype == at::kDouble ? at::kDouble : at::kFloat;
  const std::lock_guard lock(mutex);
  RotaryTable& table = tables[{head_width, theta, compute}];
  const int64_t needed = position + tokens;
  if (!table.cosine.defined() || table.cosine.size(0) < needed) {
    const at::NoGradGuard no_grad;
    const int64_t now = table.cosine.defined() ? table.cosine.size(0) : 0;
    table = make_table(std::max(needed, 2 * now), head_width, theta, compute);
  }
  return {table.cosine.narrow(0, position, tokens), table.sine.narrow(0, position, tokens)};
}

Tensor apply_rotary(const Tensor& x_BTHK, const RotaryTable& table) {
  if (has_kernel(x_BTHK)) return RotaryFunction::apply(x_BTHK, table.cosine, table.sine);
  const Tensor cosine = table.cosine.to(x_BTHK.options()), sine = table.sine.to(x_BTHK.options());
  const auto halves = x_BTHK.chunk(2, -1);
  const Tensor &a = halves[0], &b = halves[1];
  return at::cat({a * cosine - b * sine, b * cosine + a * sine}, -1);
}

}  // namespace attnres
