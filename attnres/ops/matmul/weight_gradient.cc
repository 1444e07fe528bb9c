#include "attnres/ops/matmul/weight_gradient.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <memory>
#include <type_traits>

#include "attnres/ops/small_products/kernel.h"
#include "attnres/ops/small_products/small_products.h"
#include "attnres/ops/tensors.h"

namespace attnres {
namespace {

// Tokens that are arranged at once, and the tiles of the sum that a thread works on. Fixed, so that
// the order of additions is.
constexpr int64_t kTokens = 512, kTileOutputs = 64, kTileInputs = 128;
// Numbers between rows of arranged tokens: a power of two would put all rows into the same sets of
// a cache.
constexpr int64_t kRow = kTokens + 16;

// Rows of a matrix whose rows are contiguous.
at::Tensor with_contiguous_rows(const at::Tensor& matrix) {
  return matrix.stride(1) == 1 ? matrix : matrix.contiguous();
}

template <class Storage>
class WeightGradient {
 public:
  WeightGradient(const at::Tensor& grad, const at::Tensor& x, float* sum)
      : M_(grad.size(0)),
        N_(grad.size(1)),
        K_(x.size(1)),
        grad_(data<const Storage>(grad)),
        x_(data<const Storage>(x)),
        grad_stride_(grad.stride(0)),
        x_stride_(x.stride(0)),
        sum_(sum),
        grad_NT_(new Storage[N_ * kRow]),
        x_pairs_(kPairs ? new Storage[K_ * kTokens] : nullptr) {}

  void run(bool add) {
    for (int64_t first = 0; first < M_; first += kTokens) {
      const int64_t tokens = std::min(kTokens, M_ - first);
      arrange(first, tokens);
      multiply_all(first, tokens, add || first > 0);
    }
  }

 private:
  static constexpr bool kPairs = !std::is_same_v<Storage, float>;

  static int64_t even(int64_t tokens) { return kPairs ? (tokens + 1) / 2 * 2 : tokens; }

  void arrange(int64_t first, int64_t tokens) {
    constexpr int64_t kColumns = 32;
    at::parallel_for(0, (N_ + kColumns - 1) / kColumns, 1, [&](int64_t begin, int64_t end) {
      const int64_t n = begin * kColumns, last = std::min(end * kColumns, N_);
      kernel::transpose({grad_ + first * grad_stride_ + n, grad_stride_, tokens, last - n},
                        grad_NT_.get() + n * kRow, kRow);
      for (int64_t i = n; i < last && tokens < even(tokens); ++i) {
        grad_NT_[i * kRow + tokens] = Storage{};
      }
    });
    if constexpr (kPairs) {
      at::parallel_for(0, even(tokens) / 2, 8, [&](int64_t begin, int64_t end) {
        const int64_t t = 2 * begin, last = std::min(2 * end, tokens);
        kernel::pair_rows({x_ + (first + t) * x_stride_, x_stride_, last - t, K_},
                          x_pairs_.get() + t * K_);
      });
    }
  }

  void multiply_all(int64_t first, int64_t tokens, bool add) {
    const int64_t columns = (K_ + kTileInputs - 1) / kTileInputs,
                  rows = (N_ + kTileOutputs - 1) / kTileOutputs;
    with_small_products(rows * columns, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        // Tiles of the same inputs one after the other: x stays in cache.
        const int64_t n = i % rows * kTileOutputs, k = i / rows * kTileInputs;
        const Storage* b = kPairs ? x_pairs_.get() + 2 * k : x_ + first * x_stride_ + k;
        multiply(std::min(kTileOutputs, N_ - n), std::min(kTileInputs, K_ - k), even(tokens),
                 grad_NT_.get() + n * kRow, kRow, b, kPairs ? K_ : x_stride_, sum_ + n * K_ + k, K_,
                 add);
      }
    });
  }

  int64_t M_, N_, K_;
  const Storage *grad_, *x_;
  int64_t grad_stride_, x_stride_;
  float* sum_;
  std::unique_ptr<Storage[]> grad_NT_;  // [N, kRow]
  std::unique_ptr<Storage[]> x_pairs_;  // [kTokens/2, K, 2]; none of float32
};

}  // namespace

void weight_gradient_in_blocks(const at::Tensor& grad_MN, const at::Tensor& x_MK,
                               const at::Tensor& sum_NK, bool add) {
  const at::Tensor grad = with_contiguous_rows(grad_MN), x = with_contiguous_rows(x_MK);
  if (grad.scalar_type() == at::kFloat) {
    WeightGradient<float>(grad, x, data<float>(sum_NK)).run(add);
  } else {
    WeightGradient<kernel::BFloat16>(grad, x, data<float>(sum_NK)).run(add);
  }
}

}  // namespace attnres
