#include "attnres/ops/matmul/matmul.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "attnres/ops/matmul/products.h"
#include "attnres/ops/matmul/provider.h"
#include "attnres/ops/once_differentiable.h"
#include "attnres/ops/packed_weight/packed_weight.h"
#include "attnres/ops/packed_weight/streaming_product.h"
#include "attnres/ops/tensors.h"
#include "attnres/support/error.h"

namespace attnres {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

Tensor rows_of(const Tensor& x) {
  return x.reshape({-1, x.size(-1)});
}

Tensor forward_product(const Tensor& x, const Tensor& weight) {
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = weight.size(0);
  return product(Product::output, rows_of(x), weight).view(shape);
}

void check_inputs(const Tensor& x, const MapWeight& map) {
  const Tensor &parameter = map.parameter, &values = map.values;
  if (x.dim() < 1 || values.dim() != 2 || x.size(-1) != values.size(1) ||
      parameter.sizes() != values.sizes()) {
    fail("linear map: expected x [..., K] and a weight [N, K]; they are {} and {}", shape_of(x),
         shape_of(values));
  }
  require(x.scalar_type() == values.scalar_type(),
          "linear map: x and the weight must share a dtype; they are {} and {}",
          c10::toString(x.scalar_type()), c10::toString(values.scalar_type()));
  require_one_device("linear map", x, values);
}

// The maps of x by n parameters. `copies` are multiplied in their place, or undefined where that is
// the parameter itself; being no TensorList, it is not looked into for what needs a gradient.
class LinearFunction : public torch::autograd::Function<LinearFunction> {
 public:
  static variable_list forward(AutogradContext* context, const Tensor& x, at::TensorList parameters,
                               const variable_list& copies) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    // Weights without gradients do not ask for x again.
    const bool keeps_x = std::any_of(parameters.begin(), parameters.end(),
                                     [](const Tensor& weight) { return weight.requires_grad(); });
    variable_list outputs, saved = {keeps_x ? x : Tensor()};
    for (size_t i = 0; i < parameters.size(); ++i) {
      const Tensor& weight = copies[i].defined() ? copies[i] : parameters[i];
      outputs.push_back(forward_product(x, weight));
      saved.push_back(weight);
    }
    context->save_for_backward(saved);
    context->set_materialize_grads(false);
    context->saved_data["parameter_dtype"] = parameters[0].scalar_type();
    context->saved_data["shape"] = x.sizes();
    return outputs;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    require_first_derivative("linear map");
    const variable_list saved = context->get_saved_variables();
    const auto dtype = context->saved_data["parameter_dtype"].toScalarType();
    const Tensor& x = saved[0];
    variable_list results(2 + gradients.size());  // the last of `copies`
    Tensor grad_x;
    for (size_t i = 0; i < gradients.size(); ++i) {
      if (!gradients[i].defined()) continue;
      const Tensor& weight = saved[1 + i];
      const Tensor grad = rows_of(gradients[i]);
      if (context->needs_input_grad(0)) {
        if (grad_x.defined()) {
          add_product(grad_x, Product::input_gradient, grad, weight);
        } else {
          grad_x = product(Product::input_gradient, grad, weight);
        }
      }
      if (context->needs_input_grad(1 + i)) {
        results[1 + i] = product(Product::weight_gradient, grad, rows_of(x)).to(dtype);
      }
    }
    if (grad_x.defined()) {
      results[0] = grad_x.view(context->saved_data["shape"].toIntVector());
    }
    return results;
  }
};

constexpr int64_t kUnpackedBytes = int64_t{32} << 20;  // at a time

// Calls f with the numbers of some rows after the other, and the first row's index.
template <class F>
void for_unpacked(const PackedMatrix& weight, F f) {
  const int64_t N = weight.bytes.size(0);
  const int64_t rows = std::max<int64_t>(1, kUnpackedBytes / 4 / weight.columns);
  for (int64_t n = 0; n < N; n += rows) {
    const int64_t count = std::min(rows, N - n);
    f(unpack_weight({weight.bytes.narrow(0, n, count), weight.format, weight.columns}), n);
  }
}

Tensor product_with_unpacked(const Tensor& x_MK, const PackedMatrix& weight) {
  const int64_t N = weight.bytes.size(0);
  Tensor y_MN;
  for_unpacked(weight, [&](const Tensor& rows_RK, int64_t n) {
    const Tensor y_MR = product(Product::output, x_MK, rows_RK);
    if (rows_RK.size(0) == N) {
      y_MN = y_MR;
      return;
    }
    if (!y_MN.defined()) y_MN = at::empty({x_MK.size(0), N}, x_MK.options());
    y_MN.narrow(1, n, rows_RK.size(0)).copy_(y_MR);
  });
  return y_MN;
}

void check_packed(const Tensor& x, const PackedMatrix& weight) {
  if (x.dim() < 1 || weight.bytes.dim() != 2 || x.size(-1) != weight.columns) {
    fail(
        "linear map: expected x [..., K] and a packed weight [N, K]; x is {}, and the weight has "
        "{} columns",
        shape_of(x), weight.columns);
  }
}

// The map and the gradient of its x with the numbers that the weight stands for, which are unpacked
// a piece at a time, in float32.
class PackedFunction : public torch::autograd::Function<PackedFunction> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& x, const PackedMatrix& weight) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    context->saved_data["bytes"] = weight.bytes;
    context->saved_data["format"] = static_cast<int64_t>(weight.format);
    context->saved_data["columns"] = weight.columns;
    context->saved_data["dtype"] = x.scalar_type();
    std::vector<int64_t> shape = x.sizes().vec();
    shape.back() = weight.bytes.size(0);
    const Tensor y_MN = product_with_unpacked(rows_of(x).to(at::kFloat).contiguous(), weight);
    return y_MN.view(shape).to(x.scalar_type());
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    require_first_derivative("linear map");
    const PackedMatrix weight = {context->saved_data["bytes"].toTensor(),
                                 static_cast<WeightFormat>(context->saved_data["format"].toInt()),
                                 context->saved_data["columns"].toInt()};
    const Tensor grad_MN = rows_of(gradients[0]).to(at::kFloat);
    Tensor grad_MK;
    for_unpacked(weight, [&](const Tensor& rows_RK, int64_t n) {
      const Tensor part_MR = grad_MN.narrow(1, n, rows_RK.size(0)).contiguous();
      if (grad_MK.defined()) {
        add_product(grad_MK, Product::input_gradient, part_MR, rows_RK);
      } else {
        grad_MK = product(Product::input_gradient, part_MR, rows_RK);
      }
    });
    std::vector<int64_t> shape = gradients[0].sizes().vec();
    shape.back() = weight.columns;
    return {grad_MK.view(shape).to(context->saved_data["dtype"].toScalarType()), Tensor()};
  }
};

// Of the weights that are packed, without gradients. Those that products of so few rows stream are
// one operation.
std::vector<Tensor> packed_maps(const Tensor& x, const std::vector<PackedMatrix>& weights) {
  const Tensor x_MK = rows_of(x).to(at::kFloat).contiguous();
  std::vector<PackedMatrix> streamed;
  for (const PackedMatrix& weight : weights) {
    check_packed(x, weight);
    if (is_streamed(weight, x_MK.size(0))) streamed.push_back(weight);
  }
  const std::vector<Tensor> products =
      streamed.empty() ? std::vector<Tensor>() : streaming_products(x_MK, streamed);
  std::vector<Tensor> outputs;
  auto product = products.begin();
  for (const PackedMatrix& weight : weights) {
    const Tensor y_MN =
        is_streamed(weight, x_MK.size(0)) ? *product++ : product_with_unpacked(x_MK, weight);
    std::vector<int64_t> shape = x.sizes().vec();
    shape.back() = y_MN.size(1);
    outputs.push_back(y_MN.view(shape).to(x.scalar_type()));
  }
  return outputs;
}

// Where some weights are packed and some may not be. Training computes with the numbers that they
// stand for, from its first map on, which has no gradient.
std::vector<Tensor> maps_of_packed(const Tensor& x, const std::vector<MapWeight>& weights) {
  if (at::GradMode::is_enabled()) {
    std::vector<Tensor> outputs;
    for (const MapWeight& weight : weights) {
      if (weight.packed.defined()) check_packed(x, weight.packed);
      outputs.push_back(weight.packed.defined() ? PackedFunction::apply(x, weight.packed)
                                                : linear_map(x, weight));
    }
    return outputs;
  }
  std::vector<PackedMatrix> packed;
  for (const MapWeight& weight : weights) {
    if (weight.packed.defined()) packed.push_back(weight.packed);
  }
  const std::vector<Tensor> of_packed = packed_maps(x, packed);
  std::vector<Tensor> outputs;
  auto next = of_packed.begin();
  for (const MapWeight& weight : weights) {
    outputs.push_back(weight.packed.defined() ? *next++ : forward_product(x, weight.values));
  }
  return outputs;
}

}  // namespace

std::vector<Tensor> linear_maps(const Tensor& x, const std::vector<MapWeight>& weights) {
  if (std::any_of(weights.begin(), weights.end(),
                  [](const MapWeight& weight) { return weight.packed.defined(); })) {
    return maps_of_packed(x, weights);
  }
  variable_list parameters, copies;
  for (const MapWeight& weight : weights) {
    check_inputs(x, weight);
    parameters.push_back(weight.parameter);
    copies.push_back(weight.values.is_same(weight.parameter) ? Tensor() : weight.values);
  }
  if (records({x}) || records(parameters)) {
    return LinearFunction::apply(x, at::TensorList(parameters), copies);
  }
  std::vector<Tensor> outputs;
  for (const MapWeight& weight : weights) outputs.push_back(forward_product(x, weight.values));
  return outputs;
}

Tensor linear_map(const Tensor& x, const MapWeight& weight) {
  return linear_maps(x, {weight}).front();
}

}  // namespace attnres
