// The gated activation of a feed-forward: what its gate and up maps become before the down map.
//
//   silu        silu(gate) * up: SwiGLU (Shazeer, arXiv 2002.05202)
//   gelu_tanh   gelu(gate) * up by way of tanh: GeGLU, Gemma
//   situ        beta tanh(gate / beta) sigmoid(gate) * bounded(up): Kimi K3, where
//               bounded(u) = linear_beta tanh(u / linear_beta)
//   swiglu_oai  g sigmoid(1.702 g) (u + 1): gpt-oss, where g = min(gate, limit) and u is up within
//               limit of 0
//
// SiTU is SwiGLU for small inputs, and never larger than beta * linear_beta.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "attnres/support/config_key.h"

namespace attnres {

struct Activation {
  std::string type = "silu";
  double beta = 4;
  double linear_beta = 25;
  double limit = 7;

  template <class V>
  void visit(V& v) {
    v("type", type, "what the gate and up maps become before the down map",
      one_of({{"silu", "SwiGLU"},
              {"gelu_tanh", "GeGLU"},
              {"situ", "Kimi K3"},
              {"swiglu_oai", "gpt-oss"}}));
    v("beta", beta, "of situ: bound of the gate", positive_factor());
    v("linear_beta", linear_beta, "of situ: bound of the up branch; 0 or less leaves it as it is",
      at_most(kLargestFactor));
    v("limit", limit, "of swiglu_oai: largest gate, and largest magnitude of the up branch",
      positive_factor());
  }

  bool is_situ() const { return type == "situ"; }

  // The activation of two tensors of one shape. situ and swiglu_oai are computed in float32 at
  // least.
  at::Tensor operator()(const at::Tensor& gate, const at::Tensor& up) const;
  // How many tensors of their shape are kept until the backward of it, and of the map that reads
  // it, with gate and up where they are.
  int kept() const;
};

}  // namespace attnres
