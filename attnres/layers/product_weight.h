// A weight that linear maps multiply by. Products want it in the dtype of activations: where it is
// kept in another one, that is a copy, renewed when the weight has changed.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "attnres/ops/matmul/matmul.h"

namespace attnres {

class ProductWeight {
 public:
  ProductWeight() = default;  // none
  // A parameter, of any shape; or several that are parts of one storage, `joined`.
  explicit ProductWeight(const at::Tensor& parameter);
  ProductWeight(at::Tensor joined, std::vector<at::Tensor> parameters);

  bool defined() const { return whole_.defined(); }
  // The parameter, or what the parts are parts of.
  const at::Tensor& whole() const { return whole_; }
  // Its numbers in this dtype: itself, or a copy that belongs to its version. Threads may ask at
  // once, but not while the weight changes.
  at::Tensor values(at::ScalarType dtype) const;

 private:
  struct Copy;

  at::Tensor whole_;
  std::vector<at::Tensor> parameters_;
  std::shared_ptr<Copy> copy_;
};

}  // namespace attnres
