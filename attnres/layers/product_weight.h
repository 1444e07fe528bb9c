// A weight that linear maps multiply by. Products want it in the dtype of activations: where it is
// kept in another one, that is a copy, renewed when the weight has changed. For inference it may be
// packed (parameters/packed_matrix.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "attnres/layers/versioned_copy.h"
#include "attnres/ops/matmul/matmul.h"
#include "attnres/parameters/parameters.h"

namespace attnres {

class ProductWeight {
 public:
  ProductWeight() = default;  // none
  // A parameter, of any shape, or none; or several that are parts of one storage, `joined`.
  explicit ProductWeight(const Parameter* parameter);
  ProductWeight(at::Tensor joined, std::vector<at::Tensor> parameters);

  bool defined() const { return whole_.defined(); }
  // The parameter, or what the parts are parts of.
  const at::Tensor& whole() const { return whole_; }
  // Its numbers in this dtype: itself, or a copy that belongs to its version. Threads may ask at
  // once, but not while the weight changes. Where it is packed, the copy is unpacked.
  at::Tensor values(at::ScalarType dtype) const;
  // As a map of x takes it.
  MapWeight for_map_of(const at::Tensor& x) const;
  const PackedMatrix& packed() const { return packed_; }
  int64_t version() const;  // grows with every change of the weight

 private:
  at::Tensor whole_;
  PackedMatrix packed_;
  std::vector<at::Tensor> parameters_;
  std::shared_ptr<VersionedCopy> copy_;
};

}  // namespace attnres
