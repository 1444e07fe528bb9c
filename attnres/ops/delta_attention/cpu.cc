#include <ATen/ops/empty.h>

#include "attnres/ops/delta_attention/delta_attention.h"
#include "attnres/ops/delta_attention/kernel.h"
#include "attnres/ops/tensors.h"

namespace attnres {
namespace {

template <class Storage>
kernel::StridedRows<Storage> rows_of(const at::Tensor& x, std::vector<at::Tensor>* copies) {
  const at::Tensor& rows =
      x.stride(1) == 1 || x.size(1) == 1 ? x : copies->emplace_back(x.contiguous());
  return {data<const Storage>(rows), rows.stride(0)};
}

template <class T>
std::vector<T*> typed(const std::vector<void*>& pointers) {
  std::vector<T*> result;
  for (void* pointer : pointers) result.push_back(static_cast<T*>(pointer));
  return result;
}

at::Tensor run_on_cpu(const DeltaAttentionInputs& in, const DeltaAttentionStates& kept) {
  if (!has_kernel(in.gate)) return delta_attention_composed(in, kept);
  const int64_t rows = in.gate.size(0), P = in.gate.size(1), H = in.beta.size(1);
  const auto sequences = static_cast<int64_t>(kept.states.size());
  const at::Tensor y = at::empty({rows, P}, in.gate.options());
  with_storage_type(in.gate.scalar_type(), [&](auto storage) {
    using Storage = decltype(storage);
    using T = kernel::Compute<Storage>;
    const at::ScalarType wide = compute_dtype(in.gate);
    std::vector<at::Tensor> copies;  // whose numbers are pointed to
    const auto parameter = [&](const at::Tensor& x) {
      return data<const T>(copies.emplace_back(x.to(wide).contiguous()));
    };
    std::vector<Storage*> conv_inputs[3];
    const std::vector<T*> states = typed<T>(kept.states);
    kernel::DeltaAttention<Storage> op{.tokens = rows / sequences,
                                       .heads = H,
                                       .width = P / H,
                                       .conv_width = in.conv_PW[0].size(1),
                                       .decay = rows_of<Storage>(in.decay, &copies),
                                       .gate = rows_of<Storage>(in.gate, &copies),
                                       .beta = rows_of<Storage>(in.beta, &copies),
                                       .A_log_H = parameter(in.A_log_H),
                                       .dt_bias_P = parameter(in.dt_bias_P),
                                       .gain_K = parameter(in.gain_K),
                                       .decay_bound = static_cast<T>(in.decay_bound),
                                       .norm_eps = static_cast<T>(in.norm_eps),
                                       .states = states.data(),
                                       .y = data<Storage>(y)};
    for (size_t i = 0; i < 3; ++i) {
      conv_inputs[i] = typed<Storage>(kept.conv_inputs[i]);
      op.inputs[i] = rows_of<Storage>(in.inputs[i], &copies);
      op.conv_PW[i] = parameter(in.conv_PW[i]);
      op.conv_inputs[i] = conv_inputs[i].data();
    }
    const int64_t numbers_a_head = op.tokens * op.width * op.width;
    parallel_over_tokens(sequences * H, numbers_a_head, [&](int64_t first, int64_t last) {
      kernel::delta_attention(op, first, last);
    });
  });
  return y;
}

const OnDevice delta_attention_cpu(delta_attention_table, at::kCPU, &run_on_cpu);

}  // namespace
}  // namespace attnres
