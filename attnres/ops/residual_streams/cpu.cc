#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <array>
#include <optional>
#include <tuple>

#include "attnres/ops/recorded_operation.h"
#include "attnres/ops/residual_streams/kernel.h"
#include "attnres/ops/tensors.h"

namespace attnres {
namespace {

using at::Tensor;

kernel::StreamSizes sizes_of(const Tensor& streams_TMD) {
  return {.streams = streams_TMD.size(1), .width = streams_TMD.size(2)};
}

void over_tokens(const Tensor& streams_TMD, const std::function<void(int64_t, int64_t)>& f) {
  parallel_over_tokens(streams_TMD.size(0), 2 * streams_TMD.size(1) * streams_TMD.size(2), f);
}

Tensor read_streams_cpu(const Tensor& streams_TMD, const Tensor& read_TM) {
  const Tensor streams = streams_TMD.contiguous(), read = read_TM.contiguous();
  RecordedOperation recorded("attnres::read_streams", [&] {
    return std::vector<Tensor>{streams, read};
  });
  const Tensor h_TD =
      at::empty({streams.size(0), streams.size(2)}, streams.options().requires_grad(false));
  with_storage_type(streams.scalar_type(), [&](auto storage) {
    using Storage = decltype(storage);
    using T = kernel::Compute<Storage>;
    const kernel::StreamsRead<Storage> op{.sizes = sizes_of(streams),
                                          .streams_TMD = data<const Storage>(streams),
                                          .read_TM = data<const T>(read),
                                          .h_TD = data<Storage>(h_TD)};
    over_tokens(streams,
                [&](int64_t first, int64_t last) { kernel::read_streams(op, first, last); });
  });
  recorded.wrote({h_TD});
  return h_TD;
}

Tensor read_streams_backward_cpu(const Tensor& grad_h_TD, const Tensor& streams_TMD,
                                 const Tensor& read_TM, bool read_needed,
                                 const std::optional<Tensor>& grad_streams, bool accumulate) {
  const Tensor grad_h = grad_h_TD.contiguous(), streams = streams_TMD.contiguous(),
               read = read_TM.contiguous(), grad_read = empty_if_wanted(read_needed, read);
  with_storage_type(streams.scalar_type(), [&](auto storage) {
    using Storage = decltype(storage);
    using T = kernel::Compute<Storage>;
    const kernel::StreamsReadBackward<Storage> op{
        .sizes = sizes_of(streams),
        .streams_TMD = data<const Storage>(streams),
        .read_TM = data<const T>(read),
        .grad_h_TD = data<const Storage>(grad_h),
        .grad_streams_TMD = data<T>(grad_streams.value_or(Tensor())),
        .accumulate = accumulate,
        .grad_read_TM = data<T>(grad_read)};
    over_tokens(streams, [&](int64_t first, int64_t last) {
      kernel::read_streams_backward(op, first, last);
    });
  });
  return grad_read;
}

Tensor write_streams_cpu(const Tensor& streams_TMD, const std::optional<Tensor>& mix_TMM,
                         const Tensor& write_TM, const Tensor& y_TD) {
  const Tensor streams = streams_TMD.contiguous(), write = write_TM.contiguous(),
               y = y_TD.contiguous(), mix = contiguous_if_given(mix_TMM);
  RecordedOperation recorded("attnres::write_streams", [&] {
    return std::vector<Tensor>{streams, mix, write, y};
  });
  const Tensor written_TMD = empty_like_rows(streams);
  with_storage_type(streams.scalar_type(), [&](auto storage) {
    using Storage = decltype(storage);
    using T = kernel::Compute<Storage>;
    const kernel::StreamsWrite<Storage> op{.sizes = sizes_of(streams),
                                           .streams_TMD = data<const Storage>(streams),
                                           .mix_TMM = data<const T>(mix),
                                           .write_TM = data<const T>(write),
                                           .y_TD = data<const Storage>(y),
                                           .written_TMD = data<Storage>(written_TMD)};
    over_tokens(streams,
                [&](int64_t first, int64_t last) { kernel::write_streams(op, first, last); });
  });
  recorded.wrote({written_TMD});
  return written_TMD;
}

std::tuple<Tensor, Tensor, Tensor> write_streams_backward_cpu(
    const Tensor& grad_written_TMD, const Tensor& streams_TMD, const std::optional<Tensor>& mix_TMM,
    const Tensor& write_TM, const Tensor& y_TD, std::array<bool, 3> needed,
    const std::optional<Tensor>& grad_streams, bool accumulate) {
  const Tensor grad_written = grad_written_TMD.contiguous(), streams = streams_TMD.contiguous(),
               write = write_TM.contiguous(), y = y_TD.contiguous(),
               mix = contiguous_if_given(mix_TMM);
  const Tensor grad_mix = empty_if_wanted(mix.defined() && needed[0], mix.defined() ? mix : write),
               grad_write = empty_if_wanted(needed[1], write),
               grad_y = empty_if_wanted(needed[2], y);
  with_storage_type(streams.scalar_type(), [&](auto storage) {
    using Storage = decltype(storage);
    using T = kernel::Compute<Storage>;
    const kernel::StreamsWriteBackward<Storage> op{
        .sizes = sizes_of(streams),
        .streams_TMD = data<const Storage>(streams),
        .mix_TMM = data<const T>(mix),
        .write_TM = data<const T>(write),
        .y_TD = data<const Storage>(y),
        .grad_written_TMD = data<const Storage>(grad_written),
        .grad_streams_TMD = data<T>(grad_streams.value_or(Tensor())),
        .accumulate = accumulate,
        .grad_mix_TMM = data<T>(grad_mix),
        .grad_write_TM = data<T>(grad_write),
        .grad_y_TD = data<Storage>(grad_y)};
    over_tokens(streams, [&](int64_t first, int64_t last) {
      kernel::write_streams_backward(op, first, last);
    });
  });
  return {grad_mix, grad_write, grad_y};
}

}  // namespace

TORCH_LIBRARY_IMPL(attnres, CPU, m) {
  m.impl("read_streams_fused", &read_streams_cpu);
  m.impl("read_streams_fused_backward", &read_streams_backward_cpu);
  m.impl("write_streams_fused", &write_streams_cpu);
  m.impl("write_streams_fused_backward", &write_streams_backward_cpu);
}

}  // namespace attnres
