#include <cstdint>
#include <vector>

#include "attnres/ops/exported_kernel.h"
#include "attnres/ops/sinkhorn/kernel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attnres/ops/sinkhorn/kernel_simd.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "attnres/ops/simd-inl.h"
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace attnres::kernel {
namespace HWY_NAMESPACE {

// Highway's make numbers of NaN, which would hide that something diverged.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp_or_nan(D d, V x) {
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(d, x));
}
template <class D, class V = hn::Vec<D>>
HWY_INLINE V log_or_nan(D d, V x) {
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Log(d, x));
}

// The logarithms of a matrix of as many tokens as a vector has lanes, m^2 vectors.
template <class T>
class LogMatrix {
 public:
  using D = hn::ScalableTag<T>;
  using V = hn::Vec<D>;

  explicit LogMatrix(int64_t size) : m_(size), numbers_(size * size * hn::Lanes(D())) {}

  V at(int64_t entry) const { return hn::LoadU(D(), place(entry)); }
  void set(int64_t entry, V value) { hn::StoreU(value, D(), place(entry)); }

  // Calls f(first entry, distance to the next) for every column, or every row.
  template <class F>
  HWY_INLINE void for_each_line(bool columns, const F& f) const {
    for (int64_t line = 0; line < m_; ++line) {
      columns ? f(line, m_) : f(line * m_, int64_t{1});
    }
  }

  // Every column, or every row, less the logarithm of the sum of its exponentials.
  HWY_INLINE void normalise(bool columns) {
    const D d;
    for_each_line(columns, [&](int64_t first, int64_t step) HWY_ATTR {
      V largest = at(first);
      for (int64_t i = 1; i < m_; ++i) largest = hn::Max(largest, at(first + i * step));
      V sum = hn::Zero(d);
      for (int64_t i = 0; i < m_; ++i) {
        sum = hn::Add(sum, exp_or_nan(d, hn::Sub(at(first + i * step), largest)));
      }
      const V log_sum = hn::Add(largest, log_or_nan(d, sum));
      for (int64_t i = 0; i < m_; ++i) {
        set(first + i * step, hn::Sub(at(first + i * step), log_sum));
      }
    });
  }

 private:
  const T* place(int64_t entry) const { return numbers_.data() + entry * hn::Lanes(D()); }
  T* place(int64_t entry) { return numbers_.data() + entry * hn::Lanes(D()); }

  int64_t m_;
  std::vector<T> numbers_;
};

template <class T>
void sinkhorn_tokens(const Sinkhorn<T>& op, int64_t first, int64_t last) {
  const hn::ScalableTag<T> d;
  const int64_t entries = op.size * op.size;
  LogMatrix<T> log(op.size);
  for_each_vector(d, last - first, [&](size_t k, auto part) HWY_ATTR {
    const int64_t t = first + static_cast<int64_t>(k);
    for (int64_t e = 0; e < entries; ++e) {
      log.set(e, load(d, op.logits_MMT + e * op.tokens + t, part));
    }
    for (int64_t round = 0; round < op.rounds; ++round) {
      log.normalise(/*columns=*/true);
      log.normalise(/*columns=*/false);
    }
    for (int64_t e = 0; e < entries; ++e) {
      store(d, exp_or_nan(d, log.at(e)), op.matrices_MMT + e * op.tokens + t, part);
    }
  });
}

// Backward through one normalisation of logarithms, of which `matrix` are the exponentials: each
// line's gradients g become g - matrix * sum(g).
template <class T>
HWY_INLINE void normalise_backward(LogMatrix<T>& grad, const std::vector<T>& matrix, bool columns,
                                   int64_t m) {
  const hn::ScalableTag<T> d;
  const size_t lanes = hn::Lanes(d);
  grad.for_each_line(columns, [&](int64_t first, int64_t step) HWY_ATTR {
    auto sum = hn::Zero(d);
    for (int64_t i = 0; i < m; ++i) sum = hn::Add(sum, grad.at(first + i * step));
    for (int64_t i = 0; i < m; ++i) {
      const int64_t e = first + i * step;
      grad.set(e, hn::NegMulAdd(hn::LoadU(d, matrix.data() + e * lanes), sum, grad.at(e)));
    }
  });
}

template <class T>
void sinkhorn_backward_tokens(const SinkhornBackward<T>& op, int64_t first, int64_t last) {
  const hn::ScalableTag<T> d;
  const int64_t m = op.forward.size, tokens = op.forward.tokens;
  const int64_t entries = m * m, stages = 2 * op.forward.rounds;
  const size_t lanes = hn::Lanes(d);
  LogMatrix<T> log(m), grad(m);
  std::vector<std::vector<T>> matrices(stages, std::vector<T>(entries * lanes));
  for_each_vector(d, last - first, [&](size_t k, auto part) HWY_ATTR {
    const int64_t t = first + static_cast<int64_t>(k);
    for (int64_t e = 0; e < entries; ++e)
      log.set(e, load(d, op.forward.logits_MMT + e * tokens + t, part));
    for (int64_t s = 0; s < stages; ++s) {
      log.normalise(/*columns=*/s % 2 == 0);
      for (int64_t e = 0; e < entries; ++e) {
        hn::StoreU(exp_or_nan(d, log.at(e)), d, matrices[s].data() + e * lanes);
      }
    }
    for (int64_t e = 0; e < entries; ++e) {
      const auto matrix = hn::LoadU(d, matrices[stages - 1].data() + e * lanes);
      grad.set(e, hn::Mul(matrix, load(d, op.grad_matrices_MMT + e * tokens + t, part)));
    }
    for (int64_t s = stages - 1; s >= 0; --s) {
      normalise_backward(grad, matrices[s], /*columns=*/s % 2 == 0, m);
    }
    for (int64_t e = 0; e < entries; ++e) {
      store(d, grad.at(e), op.grad_logits_MMT + e * tokens + t, part);
    }
  });
}

ATTNRES_COMPILE_NUMBERS(sinkhorn, Sinkhorn, sinkhorn_tokens)
ATTNRES_COMPILE_NUMBERS(sinkhorn_backward, SinkhornBackward, sinkhorn_backward_tokens)

}  // namespace HWY_NAMESPACE
}  // namespace attnres::kernel
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnres::kernel {

ATTNRES_EXPORT_NUMBERS(sinkhorn, Sinkhorn)
ATTNRES_EXPORT_NUMBERS(sinkhorn_backward, SinkhornBackward)

}  // namespace attnres::kernel
#endif  // HWY_ONCE
