// The gated activation of a feed-forward: what its gate and up maps become before the down map.
//
//   silu        silu(gate) * up: SwiGLU (Shazeer, arXiv 2002.05202)
//   gelu_tanh   gelu(gate) * up by way of tanh: GeGLU, Gemma
//   situ        beta tanh(gate / beta) sigmoid(gate) * bounded(up): Kimi K3, where
//               bounded(u) = linear_beta tanh(u / linear_beta)
//
// SiTU is SwiGLU for small inputs, and never larger than beta * linear_beta.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace attnres {

struct Activation {
  std::string type = "silu";  // or "gelu_tanh", "situ"
  double beta = 4;            // situ
  double linear_beta = 25;    // situ; 0 or less leaves the up branch as it is

  template <class V>
  void visit(V& v) {
    v("type", type);
    v("beta", beta);
    v("linear_beta", linear_beta);
  }

  bool is_situ() const { return type == "situ"; }

  // Throws UsageError naming the key, `path` before it.
  void check(const std::string& path) const;

  // The activation of two tensors of one shape. situ is computed in float32 at least.
  at::Tensor operator()(const at::Tensor& gate, const at::Tensor& up) const;
  // How many tensors of their shape are kept until the backward of it, and of the map that reads
  // it, with gate and up where they are.
  int kept() const;
};

}  // namespace attnres
