#include "attnres/ops/packed_weight/streaming_product.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <vector>

namespace attnres {
namespace {

using at::Tensor;

// Of W: it stays in a core's cache while all rows of x pass it.
constexpr int64_t kTileBytes = 128 << 10;

// Rows of x as kernels take them: quantized where the weight is, else in rows that do not begin at
// the same place of a core's cache, as those of a power of two do.
class ThinInput {
 public:
  ThinInput(const Tensor& x_MK, WeightFormat format) {
    const int64_t M = x_MK.size(0), K = x_MK.size(1);
    const float* x = x_MK.const_data_ptr<float>();
    if (has_blocks(format)) {
      quantize(x, M, K, format);
    } else if (M == 1) {
      rows_.push_back(x);
    } else {
      arrange(x, M, K);
    }
  }

  // Up to kMostThinRows rows from `m` on.
  void fill(kernel::ThinProduct& op, int64_t m) const {
    const int64_t count = quantized_.empty() ? std::ssize(rows_) : std::ssize(quantized_);
    op.rows = std::min(kernel::kMostThinRows, count - m);
    for (int64_t i = 0; i < op.rows; ++i) {
      if (quantized_.empty()) {
        op.x[i] = rows_[m + i];
      } else {
        op.quantized[i] = quantized_[m + i];
      }
    }
  }

 private:
  static constexpr int64_t kLine = 16;  // numbers

  void quantize(const float* x, int64_t M, int64_t K, WeightFormat format) {
    const int64_t bytes = kernel::quantized_row_bytes(K);
    memory_ = at::empty({M, bytes}, at::kByte);
    auto* memory = memory_.mutable_data_ptr<uint8_t>();
    quantized_.resize(M);
    at::parallel_for(0, M, 1 + 65536 / K, [&](int64_t first, int64_t last) {
      for (int64_t m = first; m < last; ++m) {
        quantized_[m] = kernel::quantize_row(x + m * K, K, format, memory + m * bytes);
      }
    });
  }

  void arrange(const float* x, int64_t M, int64_t K) {
    memory_ = at::empty({M, K + kLine});
    for (int64_t m = 0; m < M; ++m) {
      float* row = memory_.mutable_data_ptr<float>() + m * (K + kLine);
      std::copy(x + m * K, x + (m + 1) * K, row);
      rows_.push_back(row);
    }
  }

  Tensor memory_;
  std::vector<const float*> rows_;
  std::vector<kernel::QuantizedRow> quantized_;
};

}  // namespace

Tensor streaming_product(const Tensor& x_MK, const kernel::PackedRows& weight, int64_t N) {
  const int64_t M = x_MK.size(0);
  Tensor y_MN = at::empty({M, N}, x_MK.options());
  const ThinInput input(x_MK, weight.format);
  auto* y = y_MN.mutable_data_ptr<float>();
  const int64_t row_bytes = packed_row_bytes(weight.format, weight.columns);
  const int64_t tile =
      M <= kernel::kMostThinRows ? N : std::max<int64_t>(8, kTileBytes / row_bytes);
  at::parallel_for(0, N, 1 + 32768 / row_bytes, [&](int64_t first, int64_t last) {
    kernel::ThinProduct op;
    op.weight = weight;
    for (int64_t n = first; n < last; n += tile) {
      for (int64_t m = 0; m < M; m += kernel::kMostThinRows) {
        input.fill(op, m);
        for (int64_t i = 0; i < op.rows; ++i) op.y[i] = y + (m + i) * N;
        kernel::thin_product(op, n, std::min(last, n + tile));
      }
    }
  });
  return y_MN;
}

}  // namespace attnres
