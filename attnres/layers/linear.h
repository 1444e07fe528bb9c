// Linear maps of a layer, without bias, y = x W^T: the only way in which a layer multiplies by a
// matrix.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "attnres/layers/product_weight.h"
#include "attnres/parameters/parameters.h"

namespace attnres {

class Linear {
 public:
  Linear() = default;  // no map
  // Adds the weight [outputs, inputs] as a parameter of kind matrix.
  Linear(ParameterRegistry& parameters, int site, int64_t inputs, const MatrixRole& role);

  // x [..., inputs] gives [..., outputs], of x's dtype.
  at::Tensor operator()(const at::Tensor& x) const;

  bool defined() const { return weight_.defined(); }
  // Its numbers as a map of x takes them, for layers that multiply by parts of them.
  MapWeight weight_for(const at::Tensor& x) const {
    return {weight_.whole(), weight_.values(x.scalar_type())};
  }

 private:
  ProductWeight weight_;
};

// Maps that read the same input. Each role is a parameter of its own, and unless they are packed a
// part of one storage, so that in decoding a token meets one matrix.
class LinearGroup {
 public:
  LinearGroup() = default;
  LinearGroup(ParameterRegistry& parameters, int site, int64_t inputs,
              const std::vector<MatrixRole>& roles);

  // One output for each role. The first roles may have inputs of their own in the place of x.
  std::vector<at::Tensor> operator()(const at::Tensor& x,
                                     const std::vector<at::Tensor>& own_inputs = {}) const;

 private:
  std::vector<MapWeight> weights_for(const at::Tensor& x) const;

  std::vector<at::Tensor> parameters_;
  std::vector<int64_t> outputs_;
  ProductWeight joined_;               // all weights, one below the other; or
  std::vector<ProductWeight> single_;  // each by itself, where some are packed
};

}  // namespace attnres
