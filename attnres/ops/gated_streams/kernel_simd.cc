#include <cmath>
#include <cstdint>

#include "attnres/ops/exported_kernel.h"
#include "attnres/ops/gated_streams/kernel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attnres/ops/gated_streams/kernel_simd.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "attnres/ops/sigmoid-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace attnres::kernel {
namespace HWY_NAMESPACE {

template <class Storage>
void norm_rows(const GatedStreamsNorm<Storage>& op, int64_t first, int64_t last) {
  using T = Compute<Storage>;
  const hn::ScalableTag<T> d;
  const size_t lanes = hn::Lanes(d);
  const int64_t n = op.sizes.streams, D = op.sizes.width;
  for (int64_t row = first * n; row < last * n; ++row) {
    const Storage* h = op.streams_TND + row * D;
    auto sum = hn::Zero(d), other = hn::Zero(d);
    for_each_vectors<2>(d, D, [&]<int U>(size_t k, auto part) HWY_ATTR {
      const auto v = load(d, h + k, part);
      sum = hn::MulAdd(v, v, sum);
      if constexpr (U == 2) {
        const auto w = load(d, h + k + lanes, part);
        other = hn::MulAdd(w, w, other);
      }
    });
    const T squares = hn::GetLane(hn::SumOfLanes(d, hn::Add(sum, other)));
    const T rho = 1 / std::sqrt(squares / static_cast<T>(D) + static_cast<T>(op.eps));
    op.rho_TN[row] = rho;
    const auto factor = hn::Set(d, rho);
    const T* gain = op.gain_ND + row % n * D;
    T* normed = op.normed_TND + row * D;
    for_each_vector(d, D, [&](size_t k, auto part) HWY_ATTR {
      const auto v = hn::Mul(load(d, h + k, part), factor);
      store(d, hn::Mul(v, load(d, gain + k, part)), normed + k, part);
    });
  }
}

template <class Storage>
void mean_rows(const GatedStreamsMean<Storage>& op, int64_t first, int64_t last) {
  using T = Compute<Storage>;
  const hn::ScalableTag<T> d;
  const int64_t n = op.sizes.streams, D = op.sizes.width;
  const auto share = hn::Set(d, 1 / static_cast<T>(n));
  for (int64_t t = first; t < last; ++t) {
    const T *normed = op.normed_TND + t * n * D, *logits = op.logits_TND + t * n * D;
    for_each_vector(d, D, [&](size_t k, auto part) HWY_ATTR {
      auto sum = hn::Zero(d);
      for (int64_t i = 0; i < n; ++i) {
        const auto gate = sigmoid(d, load(d, logits + i * D + k, part));
        sum = hn::MulAdd(gate, load(d, normed + i * D + k, part), sum);
      }
      store(d, hn::Mul(sum, share), op.x_TD + t * D + k, part);
    });
  }
}

template <class Storage>
void mean_backward_rows(const GatedStreamsMeanBackward<Storage>& op, int64_t first, int64_t last) {
  using T = Compute<Storage>;
  const hn::ScalableTag<T> d;
  const int64_t n = op.sizes.streams, D = op.sizes.width;
  const auto share = hn::Set(d, 1 / static_cast<T>(n));
  for (int64_t t = first; t < last; ++t) {
    const int64_t at = t * n * D;
    for_each_vector(d, D, [&](size_t k, auto part) HWY_ATTR {
      const auto grad = hn::Mul(load(d, op.grad_x_TD + t * D + k, part), share);
      for (int64_t i = 0; i < n; ++i) {
        T* logits = op.logits_TND + at + i * D + k;
        const auto gate = sigmoid(d, load(d, logits, part));
        const auto grad_normed = hn::Mul(gate, grad);
        const auto normed = load(d, op.normed_TND + at + i * D + k, part);
        store(d, grad_normed, op.grad_normed_TND + at + i * D + k, part);
        store(d, hn::Mul(hn::Mul(grad_normed, normed), hn::Sub(hn::Set(d, 1), gate)), logits, part);
      }
    });
  }
}

template <class Storage>
void norm_backward_rows(const GatedStreamsNormBackward<Storage>& op, int64_t first, int64_t last,
                        Compute<Storage>* sums) {
  using T = Compute<Storage>;
  const hn::ScalableTag<T> d;
  const int64_t n = op.sizes.streams, D = op.sizes.width;
  for (int64_t row = first * n; row < last * n; ++row) {
    const Storage* h = op.streams_TND + row * D;
    const T *grad = op.grad_normed_TND + row * D, *gain = op.gain_ND + row % n * D;
    T* sum = sums + row % n * D;
    const auto rho = hn::Set(d, op.rho_TN[row]);
    auto dot = hn::Zero(d);
    for_each_vector(d, D, [&](size_t k, auto part) HWY_ATTR {
      const auto product = hn::Mul(load(d, grad + k, part), load(d, h + k, part));
      dot = hn::MulAdd(product, load(d, gain + k, part), dot);
      store(d, hn::MulAdd(product, rho, load(d, sum + k, part)), sum + k, part);
    });
    if (op.grad_streams_TND == nullptr) continue;
    const T inner = hn::GetLane(hn::SumOfLanes(d, dot)), r = op.rho_TN[row];
    const auto along = hn::Set(d, r * r * r * inner / static_cast<T>(D));
    T* to = op.grad_streams_TND + row * D;
    for_each_vector(d, D, [&](size_t k, auto part) HWY_ATTR {
      const auto across = hn::Mul(hn::Mul(load(d, grad + k, part), load(d, gain + k, part)), rho);
      const auto result = hn::NegMulAdd(load(d, h + k, part), along, across);
      store(d, op.accumulate ? hn::Add(result, load(d, to + k, part)) : result, to + k, part);
    });
  }
}

ATTNRES_COMPILE(gated_streams_norm, GatedStreamsNorm, norm_rows)
ATTNRES_COMPILE(gated_streams_mean, GatedStreamsMean, mean_rows)
ATTNRES_COMPILE(gated_streams_mean_backward, GatedStreamsMeanBackward, mean_backward_rows)
ATTNRES_COMPILE_WITH_SUMS(gated_streams_norm_backward, GatedStreamsNormBackward, norm_backward_rows)

}  // namespace HWY_NAMESPACE
}  // namespace attnres::kernel
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnres::kernel {

ATTNRES_EXPORT(gated_streams_norm, GatedStreamsNorm)
ATTNRES_EXPORT(gated_streams_mean, GatedStreamsMean)
ATTNRES_EXPORT(gated_streams_mean_backward, GatedStreamsMeanBackward)
ATTNRES_EXPORT_WITH_SUMS(gated_streams_norm_backward, GatedStreamsNormBackward)

}  // namespace attnres::kernel
#endif  // HWY_ONCE
