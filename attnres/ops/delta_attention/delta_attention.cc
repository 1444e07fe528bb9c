#include "attnres/ops/delta_attention/delta_attention.h"

#include "attnres/ops/tensors.h"

namespace attnres {

constinit DeviceTable<DeltaAttentionFunction> delta_attention_table(&delta_attention_composed);

bool has_delta_attention(const DeltaAttentionInputs& in) {
  const DeltaAttentionFunction* composed = &delta_attention_composed;
  return delta_attention_table.of(in.gate) != composed &&
         !records({in.inputs[0], in.inputs[1], in.inputs[2], in.decay, in.beta, in.gate,
                   in.conv_PW[0], in.conv_PW[1], in.conv_PW[2], in.A_log_H, in.dt_bias_P,
                   in.gain_K});
}

at::Tensor delta_attention(const DeltaAttentionInputs& in, const DeltaAttentionStates& kept) {
  require_one_device("delta attention", in.gate, in.inputs[0], in.inputs[1], in.inputs[2], in.decay,
                     in.beta, in.A_log_H);
  return delta_attention_table.of(in.gate)(in, kept);
}

}  // namespace attnres
