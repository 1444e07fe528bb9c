// What the two directions of fused depth attention share: the bridge from tensors to kernels.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>
#include <vector>

#include "attnres/ops/depth_attention/kernel.h"
#include "attnres/support/error.h"

namespace attnres {

// h [..., D], alpha [N, ...], and the sources' reciprocal RMS [N, ...].
using FusedResult = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

// Calls attnres::depth_attention_fused through the dispatcher.
FusedResult depth_attention_fused(at::TensorList sources, const at::Tensor& query,
                                  const at::Tensor& key_gain, double eps);

// The dtype of the statistics, the depth weights and the folded query.
inline at::ScalarType compute_dtype(const at::Tensor& source) {
  return source.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// Calls f with a value of the storage type that the kernels use for this dtype.
template <class F>
void with_storage_type(at::ScalarType dtype, F f) {
  switch (dtype) {
    case at::kFloat:
      return f(float{});
    case at::kDouble:
      return f(double{});
    case at::kBFloat16:
      return f(kernel::BFloat16{});
    default:
      fail("depth_attention: there is no kernel for sources of dtype {}", c10::toString(dtype));
  }
}

// Typed by the kernel's storage type, which torch does not know.
template <class T>
T* data(const at::Tensor& tensor) {
  return static_cast<T*>(tensor.data_ptr());
}

// The inputs as the kernels take them; owns what they point to.
template <class Storage>
class KernelInputs {
 public:
  KernelInputs(at::TensorList sources, const at::Tensor& query, const at::Tensor& key_gain) {
    const at::ScalarType compute = compute_dtype(sources[0]);
    // Folded after the conversion: a product rounded to bfloat16 would be another query.
    folded_query_ = query.to(compute).mul(key_gain.to(compute)).contiguous();
    for (const at::Tensor& source : sources) {
      sources_.push_back(source.contiguous());
      pointers_.push_back(data<const Storage>(sources_.back()));
    }
  }

  kernel::DepthAttentionInputs<Storage> view() const {
    const int64_t width = folded_query_.numel();
    return {pointers_.data(), data<const kernel::Compute<Storage>>(folded_query_),
            static_cast<int64_t>(pointers_.size()), sources_[0].numel() / width, width};
  }

 private:
  std::vector<at::Tensor> sources_;
  std::vector<const Storage*> pointers_;
  at::Tensor folded_query_;
};

}  // namespace attnres
