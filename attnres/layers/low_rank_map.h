// A map of low rank beside a map that is kept still (LoRA, Hu et al., arXiv 2106.09685, eq. 3):
//
//   y = x W^T + s (x A^T) B^T        A [r, inputs], B [outputs, r], s = alpha / r
//
// A starts with uniform numbers within 1 / sqrt(inputs), as PEFT's, and B with zeros, so that the
// model is at first the one without. Parameters of kind matrix at the map's site, whose roles are
// the map's with kLowRankIn and kLowRankOut (parameters/parameters.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "attnres/layers/product_weight.h"
#include "attnres/parameters/parameters.h"
#include "attnres/support/config_key.h"

namespace attnres {

inline constexpr const char* kAllLinear = "all-linear";

struct LoraSettings {
  int64_t rank = 0;
  double alpha = 16;
  std::vector<std::string> targets = {kAllLinear};

  template <class V>
  void visit(V& v) {
    v("rank", rank, "of the maps beside those of a model that is trained further: r; 0: none",
      from_to(0, int64_t{1} << 16));
    v("alpha", alpha, "their products are multiplied by alpha / r", more_than(0));
    v("targets", targets,
      "which maps have one: the last parts of their names, such as q_proj, or all-linear: all of "
      "attention and feed-forward, but those of routed experts");
  }

  double scale() const { return alpha / static_cast<double>(rank); }
};

class LowRankMap {
 public:
  LowRankMap() = default;  // none
  // Beside the map of this role, where the registry's model has one there.
  LowRankMap(ParameterRegistry& parameters, int site, int64_t inputs, const MatrixRole& of);

  bool defined() const { return in_.defined(); }
  // y with its outputs of x added; y itself where there is none.
  at::Tensor added_to(const at::Tensor& y, const at::Tensor& x) const;
  // W with s B A added, in W's dtype.
  at::Tensor merged_into(const at::Tensor& weight) const;
  // Whether its gradients are recorded.
  bool records() const;
  // Grows with every change of A or B.
  int64_t version() const;

 private:
  ProductWeight in_, out_;  // A, B
  double scale_ = 0;
};

}  // namespace attnres
