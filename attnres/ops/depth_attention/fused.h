// What the two directions of fused depth attention share: the bridge from tensors to kernels.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <memory>
#include <tuple>
#include <vector>

#include "attnres/ops/depth_attention/kernel.h"
#include "attnres/support/error.h"

namespace attnres {

// h [..., D], and [N, ...] each: alpha, the scores, the sources' reciprocal RMS.
using FusedResult = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

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

// w * g in the compute type: a product rounded to bfloat16 would be another query.
inline at::Tensor fold_query(const at::Tensor& query, const at::Tensor& key_gain,
                             at::ScalarType compute) {
  return query.to(compute).mul(key_gain.to(compute)).contiguous();
}

// Contiguous versions of tensors, and pointers to their data, as the kernels take them.
template <class Storage>
class Rows {
 public:
  explicit Rows(at::TensorList tensors) {
    for (const at::Tensor& tensor : tensors) add(tensor);
  }
  void add(const at::Tensor& tensor) {
    tensors_.push_back(tensor.contiguous());
    pointers_.push_back(data<const Storage>(tensors_.back()));
  }
  const Storage* const* pointers() const { return pointers_.data(); }
  int64_t size() const { return static_cast<int64_t>(pointers_.size()); }

 private:
  std::vector<at::Tensor> tensors_;
  std::vector<const Storage*> pointers_;
};

// Pointers to the N parts of `count` numbers each that a tensor [N, ...] has.
template <class T>
std::vector<T*> slices(const at::Tensor& tensor, int64_t num_slices, int64_t count) {
  std::vector<T*> pointers;
  for (int64_t n = 0; n < num_slices; ++n) pointers.push_back(data<T>(tensor) + n * count);
  return pointers;
}

// N times the same flag, as an array.
class Flags {
 public:
  Flags(int64_t count, bool value) : flags_(std::make_unique<bool[]>(count)) {
    std::fill_n(flags_.get(), count, value);
  }
  bool& operator[](int64_t i) { return flags_[i]; }
  const bool* data() const { return flags_.get(); }

 private:
  std::unique_ptr<bool[]> flags_;
};

// Runs f(first, last) over the tokens on all threads, each with enough work to be worth waking.
template <class F>
void parallel_over_tokens(int64_t num_tokens, int64_t channels_a_token, const F& f) {
  constexpr int64_t kChannelsWorthAThread = 32768;
  at::parallel_for(0, num_tokens, std::max<int64_t>(1, kChannelsWorthAThread / channels_a_token),
                   f);
}

// Sums over tokens that do not depend on the number of threads: calls f(first, last, sums), which
// adds to `num_sums` sums, for chunks of tokens that depend on the number of tokens only, and adds
// the chunks' sums in their order. Returns [num_sums].
template <class T, class F>
at::Tensor sum_over_tokens(int64_t num_tokens, int64_t num_sums, const at::TensorOptions& options,
                           const F& f) {
  constexpr int64_t kSmallestChunk = 32, kMostChunks = 64;
  const auto divide_up = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  const int64_t chunk = std::max(kSmallestChunk, divide_up(num_tokens, kMostChunks));
  const int64_t num_chunks = divide_up(num_tokens, chunk);
  const at::Tensor partials = at::zeros({num_chunks, num_sums}, options);
  at::parallel_for(0, num_chunks, 1, [&](int64_t first, int64_t last) {
    for (int64_t c = first; c < last; ++c) {
      f(c * chunk, std::min(num_tokens, (c + 1) * chunk), data<T>(partials) + c * num_sums);
    }
  });
  const at::Tensor sums = at::zeros({num_sums}, options);
  T* total = data<T>(sums);
  for (int64_t c = 0; c < num_chunks; ++c) {
    for (int64_t k = 0; k < num_sums; ++k) total[k] += data<T>(partials)[c * num_sums + k];
  }
  return sums;
}

}  // namespace attnres
