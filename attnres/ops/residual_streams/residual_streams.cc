#include "attnres/ops/residual_streams/residual_streams.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mul.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

#include "attnres/ops/gradient_slot.h"
#include "attnres/ops/matmul/products.h"
#include "attnres/ops/once_differentiable.h"
#include "attnres/ops/recorded_operation.h"
#include "attnres/ops/residual_streams/kernel.h"
#include "attnres/ops/tensors.h"

namespace attnres {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

kernel::StreamSizes sizes_of(const Tensor& streams_TMD) {
  return {.streams = streams_TMD.size(1), .width = streams_TMD.size(2)};
}

void over_tokens(const Tensor& streams_TMD, const std::function<void(int64_t, int64_t)>& f) {
  parallel_over_tokens(streams_TMD.size(0), 2 * streams_TMD.size(1) * streams_TMD.size(2), f);
}

// A gradient like `input`, undefined where it is not wanted.
Tensor wanted_like(const AutogradContext& context, size_t input_index, const Tensor& input) {
  return context.needs_input_grad(input_index) ? empty_like_rows(input) : Tensor();
}

Tensor read(const Tensor& streams_TMD, const Tensor& read_TM) {
  RecordedOperation recorded("attnres::read_streams", [&] {
    return variable_list{streams_TMD, read_TM};
  });
  const Tensor h_TD = at::empty({streams_TMD.size(0), streams_TMD.size(2)},
                                streams_TMD.options().requires_grad(false));
  with_storage_type(streams_TMD.scalar_type(), [&](auto storage) {
    using Storage = decltype(storage);
    using T = kernel::Compute<Storage>;
    const kernel::StreamsRead<Storage> op{.sizes = sizes_of(streams_TMD),
                                          .streams_TMD = data<const Storage>(streams_TMD),
                                          .read_TM = data<const T>(read_TM),
                                          .h_TD = data<Storage>(h_TD)};
    over_tokens(streams_TMD,
                [&](int64_t first, int64_t last) { kernel::read_streams(op, first, last); });
  });
  recorded.wrote({h_TD});
  return h_TD;
}

Tensor write(const Tensor& streams_TMD, const StreamsWriting& writing) {
  RecordedOperation recorded("attnres::write_streams", [&] {
    return variable_list{streams_TMD, writing.mix_TMM, writing.write_TM, writing.y_TD};
  });
  const Tensor written_TMD = empty_like_rows(streams_TMD);
  with_storage_type(streams_TMD.scalar_type(), [&](auto storage) {
    using Storage = decltype(storage);
    using T = kernel::Compute<Storage>;
    const kernel::StreamsWrite<Storage> op{.sizes = sizes_of(streams_TMD),
                                           .streams_TMD = data<const Storage>(streams_TMD),
                                           .mix_TMM = data<const T>(writing.mix_TMM),
                                           .write_TM = data<const T>(writing.write_TM),
                                           .y_TD = data<const Storage>(writing.y_TD),
                                           .written_TMD = data<Storage>(written_TMD)};
    over_tokens(streams_TMD,
                [&](int64_t first, int64_t last) { kernel::write_streams(op, first, last); });
  });
  recorded.wrote({written_TMD});
  return written_TMD;
}

class ReadStreamsFunction : public torch::autograd::Function<ReadStreamsFunction> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& streams_TMD,
                        const Tensor& read_TM) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    context->save_for_backward({streams_TMD, read_TM});
    return read(streams_TMD, read_TM);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    require_first_derivative("read_streams");
    const variable_list saved = context->get_saved_variables();
    const Tensor &streams = saved[0], &read_TM = saved[1], grad_h = gradients[0].contiguous();
    const SourceGradient grad_streams(streams, context->needs_input_grad(0));
    const Tensor grad_read = wanted_like(*context, 1, read_TM);
    with_storage_type(streams.scalar_type(), [&](auto storage) {
      using Storage = decltype(storage);
      using T = kernel::Compute<Storage>;
      const kernel::StreamsReadBackward<Storage> op{.sizes = sizes_of(streams),
                                                    .streams_TMD = data<const Storage>(streams),
                                                    .read_TM = data<const T>(read_TM),
                                                    .grad_h_TD = data<const Storage>(grad_h),
                                                    .grad_streams_TMD = data<T>(grad_streams.sum()),
                                                    .accumulate = grad_streams.accumulate(),
                                                    .grad_read_TM = data<T>(grad_read)};
      over_tokens(streams, [&](int64_t first, int64_t last) {
        kernel::read_streams_backward(op, first, last);
      });
    });
    return {grad_streams.to_return(), grad_read};
  }
};

std::optional<Tensor> given(const Tensor& tensor) {
  return tensor.defined() ? std::make_optional(tensor) : std::nullopt;
}

class WriteStreamsFunction : public torch::autograd::Function<WriteStreamsFunction> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& streams_TMD, const Tensor& write_TM,
                        const Tensor& y_TD, const std::optional<Tensor>& mix) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const Tensor mix_TMM = mix.value_or(Tensor());
    context->save_for_backward({streams_TMD, write_TM, y_TD, mix_TMM});
    return write(streams_TMD, {mix_TMM, write_TM, y_TD});
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    require_first_derivative("write_streams");
    const variable_list saved = context->get_saved_variables();
    const Tensor &streams = saved[0], &write_TM = saved[1], &y_TD = saved[2], &mix_TMM = saved[3];
    const Tensor grad_written = gradients[0].contiguous();
    const SourceGradient grad_streams(streams, context->needs_input_grad(0));
    const Tensor grad_write = wanted_like(*context, 1, write_TM);
    const Tensor grad_y = wanted_like(*context, 2, y_TD);
    const Tensor grad_mix = mix_TMM.defined() ? wanted_like(*context, 3, mix_TMM) : Tensor();
    with_storage_type(streams.scalar_type(), [&](auto storage) {
      using Storage = decltype(storage);
      using T = kernel::Compute<Storage>;
      const kernel::StreamsWriteBackward<Storage> op{
          .sizes = sizes_of(streams),
          .streams_TMD = data<const Storage>(streams),
          .mix_TMM = data<const T>(mix_TMM),
          .write_TM = data<const T>(write_TM),
          .y_TD = data<const Storage>(y_TD),
          .grad_written_TMD = data<const Storage>(grad_written),
          .grad_streams_TMD = data<T>(grad_streams.sum()),
          .accumulate = grad_streams.accumulate(),
          .grad_mix_TMM = data<T>(grad_mix),
          .grad_write_TM = data<T>(grad_write),
          .grad_y_TD = data<Storage>(grad_y)};
      over_tokens(streams, [&](int64_t first, int64_t last) {
        kernel::write_streams_backward(op, first, last);
      });
    });
    return {grad_streams.to_return(), grad_write, grad_y, grad_mix};
  }
};

Tensor rows_of(const Tensor& x, const Tensor& projection_RK) {
  return x.reshape({-1, projection_RK.size(1)});
}

// The product first and the norm after it: y = (W x) rho with rho = 1 / sqrt(mean(x^2) + eps).
struct Projected {
  Tensor product_NR;      // W x, in float32 or better
  Tensor inverse_rms_N1;  // rho
};

Projected project(const Tensor& x_NK, const Tensor& projection_RK, double eps) {
  const at::ScalarType wide = compute_dtype(x_NK);
  const Tensor length = at::linalg_vector_norm(x_NK, 2, {-1}, /*keepdim=*/true, wide);
  return {product(Product::output, x_NK.to(projection_RK.scalar_type()), projection_RK).to(wide),
          length.square_().div_(static_cast<double>(x_NK.size(1))).add_(eps).rsqrt_()};
}

class ProjectNormalisedFunction : public torch::autograd::Function<ProjectNormalisedFunction> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& projection_RK,
                        double eps) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const Projected made = project(rows_of(x, projection_RK), projection_RK, eps);
    context->save_for_backward({x, projection_RK, made.product_NR, made.inverse_rms_N1});
    return at::mul(made.product_NR, made.inverse_rms_N1);
  }

  // dW = sum rho dy x^T,  dx = rho W^T dy - x rho^3 (dy . W x) / K
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    require_first_derivative("project_normalised");
    const variable_list saved = context->get_saved_variables();
    const Tensor &x = saved[0], &projection = saved[1], &of_x = saved[2], &rho = saved[3];
    const Tensor x_NK = rows_of(x, projection);
    const Tensor grad = at::mul(gradients[0], rho).to(projection.scalar_type());
    variable_list results(3);
    if (context->needs_input_grad(1)) {
      results[1] = product(Product::weight_gradient, grad, x_NK.to(projection.scalar_type()))
                       .to(projection.scalar_type());
    }
    if (!context->needs_input_grad(0)) return results;
    const auto slot = slot_of(x);
    Tensor sum_NK;
    if (slot && slot->gradient.defined()) {
      sum_NK = slot->gradient.view(x_NK.sizes());
      add_product(sum_NK, Product::input_gradient, grad, projection);
    } else {
      sum_NK = product(Product::input_gradient, grad, projection).to(rho.scalar_type());
    }
    const Tensor along = at::mul(gradients[0], of_x).sum(-1, /*keepdim=*/true);
    const Tensor of_length = along.mul_(rho.pow(3)).div_(-static_cast<double>(x_NK.size(1)));
    sum_NK.addcmul_(x_NK.to(rho.scalar_type()), of_length);
    if (slot) {
      slot->gradient = sum_NK.view(x.sizes());
    } else {
      results[0] = sum_NK.view(x.sizes()).to(x.scalar_type());
    }
    return results;
  }
};

void check_streams_and(const char* name, const Tensor& streams_TMD, const Tensor& map_TM) {
  require(has_kernel(streams_TMD) && streams_TMD.dim() == 3 && streams_TMD.size(1) > 0 &&
              streams_TMD.size(2) > 0,
          "{}: expected streams [T, m, D] of float32, float64 or bfloat16 on the CPU; they are {} "
          "{} on {}",
          name, c10::toString(streams_TMD.scalar_type()), shape_of(streams_TMD),
          streams_TMD.device().str());
  require(map_TM.is_cpu() && map_TM.sizes() == streams_TMD.sizes().slice(0, 2),
          "{}: of streams {} the map must be [T, m] on the CPU; it is {} on {}", name,
          shape_of(streams_TMD), shape_of(map_TM), map_TM.device().str());
}

}  // namespace

Tensor read_streams(const Tensor& streams_TMD, const Tensor& read_TM) {
  check_streams_and("read_streams", streams_TMD, read_TM);
  const Tensor streams = streams_TMD.contiguous();
  const Tensor map = read_TM.to(compute_dtype(streams)).contiguous();
  return records({streams, map}) ? ReadStreamsFunction::apply(streams, map) : read(streams, map);
}

Tensor write_streams(const Tensor& streams_TMD, const StreamsWriting& writing) {
  check_streams_and("write_streams", streams_TMD, writing.write_TM);
  const int64_t T = streams_TMD.size(0), m = streams_TMD.size(1), D = streams_TMD.size(2);
  const auto& [mix_TMM, write_TM, y_TD] = writing;
  require(!mix_TMM.defined() || (mix_TMM.is_cpu() && mix_TMM.sizes() == at::IntArrayRef({T, m, m})),
          "write_streams: of streams {} the mixing must be [T, m, m] on the CPU; it is {}",
          shape_of(streams_TMD), shape_of(mix_TMM));
  require(y_TD.is_cpu() && y_TD.sizes() == at::IntArrayRef({T, D}) &&
              y_TD.scalar_type() == streams_TMD.scalar_type(),
          "write_streams: of streams {} {} the output must be [T, D] alike on the CPU; it is {} {} "
          "on {}",
          c10::toString(streams_TMD.scalar_type()), shape_of(streams_TMD),
          c10::toString(y_TD.scalar_type()), shape_of(y_TD), y_TD.device().str());
  const at::ScalarType wide = compute_dtype(streams_TMD);
  const Tensor streams = streams_TMD.contiguous(), y = y_TD.contiguous();
  const Tensor mix = mix_TMM.defined() ? mix_TMM.to(wide).contiguous() : mix_TMM;
  const Tensor map = write_TM.to(wide).contiguous();
  return records({streams, mix, map, y}) ? WriteStreamsFunction::apply(streams, map, y, given(mix))
                                         : write(streams, {mix, map, y});
}

Tensor project_normalised(const Tensor& x, const Tensor& projection_RK, double eps) {
  std::vector<int64_t> sizes = x.sizes().vec();
  const int64_t K = projection_RK.dim() == 2 ? projection_RK.size(1) : 0;
  int64_t numbers = 1;
  do {
    require(
        !sizes.empty() && sizes.back() > 0 && K > 0,
        "project_normalised: expected W [R, K], K the numbers in the last dimensions of x; they "
        "are {} and {}",
        shape_of(projection_RK), shape_of(x));
    numbers *= sizes.back();
    sizes.pop_back();
  } while (numbers < K);
  require(numbers == K,
          "project_normalised: the last dimensions of x {} hold no {} numbers, which W {} is for",
          shape_of(x), K, shape_of(projection_RK));
  sizes.push_back(projection_RK.size(0));
  if (records({x, projection_RK})) {
    return ProjectNormalisedFunction::apply(x, projection_RK, eps).view(sizes);
  }
  const auto [of_x, inverse_rms] = project(rows_of(x, projection_RK), projection_RK, eps);
  return at::mul(of_x, inverse_rms).view(sizes);
}

}  // namespace attnres
