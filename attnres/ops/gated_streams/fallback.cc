#include <ATen/TensorOperators.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>

#include "attnres/ops/composed.h"
#include "attnres/ops/gated_streams/gated_streams.h"
#include "attnres/ops/tensors.h"

namespace attnres {

using at::Tensor;

StreamGates stream_gates_composed(const Tensor& normed_TND, const GatedStreamsMaps& maps) {
  const at::ScalarType wide = compute_dtype(normed_TND);
  const Tensor N_TND = normed_TND.to(wide);
  const Tensor z_TC = N_TND.flatten(1) / static_cast<double>(N_TND.size(1));
  const Tensor inner_TK = at::silu(at::linear(z_TC, maps.down_KC.to(wide)));
  StreamGates gates;
  gates.gates_TND = at::sigmoid(at::linear(inner_TK, maps.up_CK.to(wide))).view_as(N_TND);
  if (maps.write_NC.defined()) {
    gates.write_TN = at::sigmoid(at::linear(z_TC, maps.write_NC.to(wide)));
  }
  return gates;
}

GatedStreamsRead read_gated_streams_composed(const Tensor& streams_TND,
                                             const GatedStreamsMaps& maps, double eps) {
  note_composed("gated streams", streams_TND);
  const at::ScalarType wide = compute_dtype(streams_TND);
  const Tensor H_TND = streams_TND.to(wide);
  const Tensor N_TND = H_TND * inverse_rms_of(H_TND, eps).unsqueeze(-1) * maps.norm_ND.to(wide);
  const auto [gates_TND, write_TN] = stream_gates_composed(N_TND, maps);
  return {(gates_TND * N_TND).mean(1).to(streams_TND.scalar_type()), write_TN};
}

}  // namespace attnres
