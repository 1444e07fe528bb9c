#include "attnres/ops/residual_streams/residual_streams.h"

#include <ATen/ops/empty.h>
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

Tensor only_if(bool needed, const Tensor& gradient) {
  return needed ? gradient : Tensor();
}

// ---- What is read ----

Tensor read_streams_meta(const Tensor& streams_TMD, const Tensor& /*read_TM*/) {
  return at::empty_symint({streams_TMD.sym_size(0), streams_TMD.sym_size(2)},
                          streams_TMD.options().requires_grad(false));
}

// A backward puts the gradient of the streams, where it is wanted, into `grad_streams`, or adds it
// to what is there; others that are not needed have no numbers.
Tensor read_streams_backward_meta(const Tensor& /*grad_h_TD*/, const Tensor& /*streams_TMD*/,
                                  const Tensor& read_TM, bool read_needed,
                                  const std::optional<Tensor>& /*grad_streams*/,
                                  bool /*accumulate*/) {
  return empty_if_wanted(read_needed, read_TM);
}

constexpr Operation<read_streams_meta> kReadStreams("attnres::read_streams_fused");
constexpr Operation<read_streams_backward_meta> kReadStreamsBackward(
    "attnres::read_streams_fused_backward");

class ReadStreamsFunction : public torch::autograd::Function<ReadStreamsFunction> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& streams_TMD,
                        const Tensor& read_TM) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    context->save_for_backward({streams_TMD, read_TM});
    return kReadStreams->call(streams_TMD, read_TM);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const Tensor &streams = saved[0], &read_TM = saved[1];
    const bool read_needed = context->needs_input_grad(1);
    const SourceGradient grad_streams(streams, context->needs_input_grad(0));
    const Tensor grad_read =
        kReadStreamsBackward->call(gradients[0], streams, read_TM, read_needed,
                                   given(grad_streams.sum()), grad_streams.accumulate());
    return {grad_streams.to_return(), only_if(read_needed, grad_read)};
  }
};

Tensor read_streams_autograd(const Tensor& streams_TMD, const Tensor& read_TM) {
  require_untransformed("read_streams_fused", {streams_TMD, read_TM});
  return ReadStreamsFunction::apply(streams_TMD, read_TM);
}

// ---- What is written ----

Tensor write_streams_meta(const Tensor& streams_TMD, const std::optional<Tensor>& /*mix_TMM*/,
                          const Tensor& /*write_TM*/, const Tensor& /*y_TD*/) {
  return empty_like_rows(streams_TMD);
}

// The gradients of the mixing, of the map b and of y, which `needed` is for.
std::tuple<Tensor, Tensor, Tensor> write_streams_backward_meta(
    const Tensor& /*grad_written_TMD*/, const Tensor& /*streams_TMD*/,
    const std::optional<Tensor>& mix_TMM, const Tensor& write_TM, const Tensor& y_TD,
    std::array<bool, 3> needed, const std::optional<Tensor>& /*grad_streams*/,
    bool /*accumulate*/) {
  return {empty_if_wanted(mix_TMM && needed[0], mix_TMM.value_or(write_TM)),
          empty_if_wanted(needed[1], write_TM), empty_if_wanted(needed[2], y_TD)};
}

constexpr Operation<write_streams_meta> kWriteStreams("attnres::write_streams_fused");
constexpr Operation<write_streams_backward_meta> kWriteStreamsBackward(
    "attnres::write_streams_fused_backward");

class WriteStreamsFunction : public torch::autograd::Function<WriteStreamsFunction> {
 public:
  // The mixing last: where there is none it is no input of the graph.
  static Tensor forward(AutogradContext* context, const Tensor& streams_TMD, const Tensor& write_TM,
                        const Tensor& y_TD, const std::optional<Tensor>& mix_TMM) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    context->save_for_backward(in_one_list(streams_TMD, write_TM, y_TD, mix_TMM));
    return kWriteStreams->call(streams_TMD, mix_TMM, write_TM, y_TD);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const Tensor &streams = saved[0], &write_TM = saved[1], &y_TD = saved[2], &mix_TMM = saved[3];
    const std::array<bool, 3> needed = {mix_TMM.defined() && context->needs_input_grad(3),
                                        context->needs_input_grad(1), context->needs_input_grad(2)};
    const SourceGradient grad_streams(streams, context->needs_input_grad(0));
    const auto [grad_mix, grad_write, grad_y] =
        kWriteStreamsBackward->call(gradients[0], streams, given(mix_TMM), write_TM, y_TD, needed,
                                    given(grad_streams.sum()), grad_streams.accumulate());
    return {grad_streams.to_return(), only_if(needed[1], grad_write), only_if(needed[2], grad_y),
            only_if(needed[0], grad_mix)};
  }
};

Tensor write_streams_autograd(const Tensor& streams_TMD, const std::optional<Tensor>& mix_TMM,
                              const Tensor& write_TM, const Tensor& y_TD) {
  require_untransformed("write_streams_fused", in_one_list(streams_TMD, mix_TMM, write_TM, y_TD));
  return WriteStreamsFunction::apply(streams_TMD, write_TM, y_TD, mix_TMM);
}

// ---- What is public ----

void check_streams_and(const char* name, const Tensor& streams_TMD, const Tensor& map_TM) {
  if (!at::isFloatingType(streams_TMD.scalar_type()) || streams_TMD.dim() != 3 ||
      streams_TMD.sym_size(1) < 1 || streams_TMD.sym_size(2) < 1) {
    fail("{}: expected streams [T, m, D] of a floating dtype; they are {} {}", name,
         c10::toString(streams_TMD.scalar_type()), shape_of(streams_TMD));
  }
  if (map_TM.sym_sizes() != streams_TMD.sym_sizes().slice(0, 2) ||
      map_TM.device() != streams_TMD.device()) {
    fail("{}: of streams {} the map must be [T, m] on {}; it is {} on {}", name,
         shape_of(streams_TMD), streams_TMD.device().str(), shape_of(map_TM),
         map_TM.device().str());
  }
}

void check_writing(const Tensor& streams_TMD, const StreamsWriting& writing) {
  const auto& [mix_TMM, write_TM, y_TD] = writing;
  check_streams_and("write_streams", streams_TMD, write_TM);
  const c10::SymInt T = streams_TMD.sym_size(0), m = streams_TMD.sym_size(1),
                    D = streams_TMD.sym_size(2);
  const std::array<c10::SymInt, 3> mixes = {T, m, m};
  const std::array<c10::SymInt, 2> rows = {T, D};
  const c10::Device device = streams_TMD.device();
  if (mix_TMM.defined() &&
      (mix_TMM.sym_sizes() != c10::SymIntArrayRef(mixes) || mix_TMM.device() != device)) {
    fail("write_streams: of streams {} the mixing must be [T, m, m] on {}; it is {} on {}",
         shape_of(streams_TMD), device.str(), shape_of(mix_TMM), mix_TMM.device().str());
  }
  if (y_TD.sym_sizes() != c10::SymIntArrayRef(rows) || y_TD.device() != device ||
      y_TD.scalar_type() != streams_TMD.scalar_type()) {
    fail("write_streams: of streams {} {} the output must be [T, D] alike on {}; it is {}",
         c10::toString(streams_TMD.scalar_type()), shape_of(streams_TMD), device.str(),
         described(y_TD));
  }
}

}  // namespace

Tensor read_streams(const Tensor& streams_TMD, const Tensor& read_TM) {
  check_streams_and("read_streams", streams_TMD, read_TM);
  if (!has_kernel(streams_TMD) || is_transformed({streams_TMD, read_TM})) {
    return read_streams_composed(streams_TMD, read_TM);
  }
  return call_operation(*kReadStreams, streams_TMD, read_TM.to(compute_dtype(streams_TMD)));
}

Tensor write_streams(const Tensor& streams_TMD, const StreamsWriting& writing) {
  check_writing(streams_TMD, writing);
  const auto& [mix_TMM, write_TM, y_TD] = writing;
  if (!has_kernel(streams_TMD) || is_transformed({streams_TMD, mix_TMM, write_TM, y_TD})) {
    return write_streams_composed(streams_TMD, writing);
  }
  const at::ScalarType wide = compute_dtype(streams_TMD);
  return call_operation(*kWriteStreams, streams_TMD,
                        given(mix_TMM.defined() ? mix_TMM.to(wide) : mix_TMM), write_TM.to(wide),
                        y_TD);
}

namespace {

Tensor write_streams_mixed(const Tensor& streams_TMD, const std::optional<Tensor>& mix_TMM,
                           const Tensor& write_TM, const Tensor& y_TD) {
  return write_streams(streams_TMD, {mix_TMM.value_or(Tensor()), write_TM, y_TD});
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(attnres, m) {
  m.def("read_streams(Tensor streams, Tensor read) -> Tensor", &read_streams);
  m.def("read_streams_fused(Tensor streams, Tensor read) -> Tensor");
  m.def(
      "read_streams_fused_backward(Tensor grad_h, Tensor streams, Tensor read, bool read_needed,"
      " Tensor(a!)? grad_streams, bool accumulate) -> Tensor grad_read");
  m.def("write_streams(Tensor streams, Tensor? mix, Tensor write, Tensor y) -> Tensor",
        &write_streams_mixed);
  m.def("write_streams_fused(Tensor streams, Tensor? mix, Tensor write, Tensor y) -> Tensor");
  m.def(
      "write_streams_fused_backward(Tensor grad_written, Tensor streams, Tensor? mix, Tensor write,"
      " Tensor y, bool[3] needed, Tensor(a!)? grad_streams, bool accumulate)"
      " -> (Tensor grad_mix, Tensor grad_write, Tensor grad_y)");
}

TORCH_LIBRARY_IMPL(attnres, Meta, m) {
  m.impl("read_streams_fused", &read_streams_meta);
  m.impl("read_streams_fused_backward", &read_streams_backward_meta);
  m.impl("write_streams_fused", &write_streams_meta);
  m.impl("write_streams_fused_backward", &write_streams_backward_meta);
}
TORCH_LIBRARY_IMPL(attnres, FuncTorchBatchedDecomposition, m) {
  m.impl("read_streams", &read_streams);
  m.impl("write_streams", &write_streams_mixed);
}
TORCH_LIBRARY_IMPL(attnres, Autograd, m) {
  m.impl("read_streams_fused", &read_streams_autograd);
  m.impl("write_streams_fused", &write_streams_autograd);
  implement_once_differentiable(m, {"read_streams_fused_backward", "write_streams_fused_backward"});
}

}  // namespace attnres
