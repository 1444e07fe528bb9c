// Linear maps of a layer, without bias, y = x W^T: the only way in which a layer multiplies by a
// matrix. Each may have one of low rank beside it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "attnres/layers/low_rank_map.h"
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
  MapWeight weight_for(const at::Tensor& x) const;

 private:
  ProductWeight weight_;
  LowRankMap beside_;
  std::shared_ptr<VersionedCopy> merged_;  // both in one, for those layers
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
  std::vector<at::Tensor> maps(const at::Tensor& x,
                               const std::vector<at::Tensor>& own_inputs) const;

  std::vector<at::Tensor> parameters_;
  std::vector<int64_t> outputs_;
  ProductWeight joined_;               // all weights, one below the other; or
  std::vector<ProductWeight> single_;  // each by itself, where some are packed
  std::vector<LowRankMap> beside_;     // none, or one of each role
};

}  // namespace attnres
