// What a sublayer reads of n residual streams a token through gates of single channels (gated
// residuals, arXiv 2608.30320), H of n rows of width D:
//   N_i = g_i * H_i / sqrt(mean(H_i^2) + eps),  z = [N_1; ..; N_n] / n
//   x = 1/n sum_i G_i * N_i,  [G_1; ..; G_n] = sg(U silu(A z))
// and what it writes by, sg(W z), sg the sigmoid. Computed in float32 or better. On the CPU a block
// of tokens goes through all of it while it is in cache, forward and, from the streams anew,
// backward, so that nothing as large as the streams is kept; differentiable once. Where H has a
// gradient slot (gradient_slot.h), its gradient goes there. Elsewhere it is composed of tensor
// operations.
//
// Throws Error where shapes, dtypes or devices do not fit.
//
// In Python: torch.ops.attnres.read_gated_streams(streams, norm, down, up, write, eps).
#pragma once

#include <ATen/core/Tensor.h>

namespace attnres {

struct GatedStreamsMaps {
  at::Tensor norm_ND;   // g
  at::Tensor down_KC;   // A [K, n D]
  at::Tensor up_CK;     // U [n D, K]
  at::Tensor write_NC;  // W [n, n D]; undefined where nothing is written
};

struct GatedStreamsRead {
  at::Tensor x_TD;      // in the streams' dtype
  at::Tensor write_TN;  // sg(W z), in float32 or better; undefined without W
};
GatedStreamsRead read_gated_streams(const at::Tensor& streams_TND, const GatedStreamsMaps& maps,
                                    double eps);

// G [T, n, D] and sg(W z) of N [T, n, D], composed of tensor operations: on any device, and as
// often differentiable as one likes.
struct StreamGates {
  at::Tensor gates_TND, write_TN;
};
StreamGates stream_gates_composed(const at::Tensor& normed_TND, const GatedStreamsMaps& maps);

// read_gated_streams of what was checked, composed so.
GatedStreamsRead read_gated_streams_composed(const at::Tensor& streams_TND,
                                             const GatedStreamsMaps& maps, double eps);

}  // namespace attnres
