#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <vector>

#include "attnres/ops/packed_weight/kernel.h"
#include "attnres/ops/packed_weight/kernel_wide.h"
#include "attnres/ops/packed_weight/streaming_product.h"

namespace attnres {
namespace {

using at::Tensor;

kernel::PackedRows rows_of(const PackedMatrix& weight) {
  return {static_cast<const uint8_t*>(weight.bytes.const_data_ptr()), weight.format,
          weight.columns};
}

// From so many rows on, products with quantized weights are faster by panels.
constexpr int64_t kFewestWideRows = 17;

// A tile of W stays in a core's cache while all rows of x pass it.
constexpr int64_t kTileBytes = 128 << 10;

// Rows of x as kernels take them: quantized for weights that are, else in rows that do not begin
// at the same place of a core's cache, as those of a power of two do.
class ThinInput {
 public:
  explicit ThinInput(const Tensor& x_MK) : x_MK_(x_MK) {}

  // Before products with weights of this format.
  void prepare(WeightFormat format) {
    if (is_quantized(format)) {
      if (quantized_.empty()) quantize();
    } else if (rows_.empty()) {
      arrange();
    }
  }

  // Up to kMostThinRows rows from `m` on.
  void fill(kernel::ThinProduct& op, int64_t m) const {
    op.rows = std::min(kernel::kMostThinRows, x_MK_.size(0) - m);
    for (int64_t i = 0; i < op.rows; ++i) {
      if (is_quantized(op.weight.format)) {
        op.quantized[i] = quantized_[m + i];
      } else {
        op.x[i] = rows_[m + i];
      }
    }
  }

 private:
  static constexpr int64_t kLine = 16;  // numbers

  void quantize() {
    const int64_t M = x_MK_.size(0), K = x_MK_.size(1), bytes = kernel::quantized_row_bytes(K);
    const float* x = x_MK_.const_data_ptr<float>();
    quantized_memory_ = at::empty({M, bytes}, at::kByte);
    auto* memory = quantized_memory_.mutable_data_ptr<uint8_t>();
    quantized_.resize(M);
    at::parallel_for(0, M, 1 + 65536 / K, [&](int64_t first, int64_t last) {
      for (int64_t m = first; m < last; ++m) {
        quantized_[m] = kernel::quantize_row(x + m * K, K, memory + m * bytes);
      }
    });
  }

  void arrange() {
    const int64_t M = x_MK_.size(0), K = x_MK_.size(1);
    const float* x = x_MK_.const_data_ptr<float>();
    if (M == 1) {
      rows_.push_back(x);
      return;
    }
    memory_ = at::empty({M, K + kLine});
    for (int64_t m = 0; m < M; ++m) {
      float* row = memory_.mutable_data_ptr<float>() + m * (K + kLine);
      std::copy(x + m * K, x + (m + 1) * K, row);
      rows_.push_back(row);
    }
  }

  Tensor x_MK_, memory_, quantized_memory_;
  std::vector<const float*> rows_;
  std::vector<kernel::QuantizedRow> quantized_;
};

// Rows `first` to `last` of W by all rows of x.
void multiply_rows(const ThinInput& input, const kernel::PackedRows& weight, const Tensor& y_MN,
                   int64_t first, int64_t last) {
  const int64_t M = y_MN.size(0), N = y_MN.size(1);
  const int64_t row_bytes = packed_row_bytes(weight.format, weight.columns);
  const int64_t tile =
      M <= kernel::kMostThinRows ? N : std::max<int64_t>(8, kTileBytes / row_bytes);
  auto* y = y_MN.mutable_data_ptr<float>();
  kernel::ThinProduct op;
  op.weight = weight;
  for (int64_t n = first; n < last; n += tile) {
    for (int64_t m = 0; m < M; m += kernel::kMostThinRows) {
      input.fill(op, m);
      for (int64_t i = 0; i < op.rows; ++i) op.y[i] = y + (m + i) * N;
      kernel::thin_product(op, n, std::min(last, n + tile));
    }
  }
}

// Threads go along all rows of all weights, so that short ones wait for none: calls
// f(i, first, last) with rows of the i-th, from a multiple of `step` on.
template <class F>
void for_rows_of_all(const std::vector<PackedMatrix>& weights, int64_t step, int64_t grain,
                     const F& f) {
  const auto steps_of = [step](const PackedMatrix& weight) {
    return (weight.bytes.size(0) + step - 1) / step;
  };
  int64_t steps = 0;
  for (const PackedMatrix& weight : weights) steps += steps_of(weight);
  at::parallel_for(0, steps, grain, [&](int64_t first, int64_t last) {
    int64_t before = 0;
    for (size_t i = 0; i < weights.size(); ++i) {
      const int64_t begin = std::max(first - before, int64_t{0});
      const int64_t end = std::min(last - before, steps_of(weights[i]));
      if (begin < end) f(i, begin * step, std::min(end * step, weights[i].bytes.size(0)));
      before += steps_of(weights[i]);
    }
  });
}

void multiply_thin(const Tensor& x_MK, const std::vector<PackedMatrix>& weights,
                   const std::vector<Tensor>& outputs) {
  ThinInput input(x_MK);
  int64_t bytes = 1;
  for (const PackedMatrix& weight : weights) {
    input.prepare(weight.format);
    bytes = std::max(bytes, packed_row_bytes(weight.format, weight.columns));
  }
  for_rows_of_all(weights, 1, 1 + 32768 / bytes, [&](size_t i, int64_t first, int64_t last) {
    multiply_rows(input, rows_of(weights[i]), outputs[i], first, last);
  });
}

// All of quantized weights.
void multiply_wide(const Tensor& x_MK, const std::vector<PackedMatrix>& weights,
                   const std::vector<Tensor>& outputs) {
  constexpr int64_t kRows = kernel::kWideRows;
  const int64_t M = x_MK.size(0), K = x_MK.size(1);
  const int64_t tile_bytes = kernel::wide_tile_bytes(K), tiles = (M + kRows - 1) / kRows;
  const Tensor memory = at::empty({tiles, tile_bytes}, at::kByte);
  const float* x = x_MK.const_data_ptr<float>();
  auto* tile_memory = memory.mutable_data_ptr<uint8_t>();
  at::parallel_for(0, tiles, 1 + 4096 / K, [&](int64_t first, int64_t last) {
    for (int64_t t = first; t < last; ++t) {
      kernel::fill_wide_tile(x + t * kRows * K, std::min(kRows, M - t * kRows), K,
                             tile_memory + t * tile_bytes);
    }
  });
  for_rows_of_all(weights, kRows, 1 + 4096 / K, [&](size_t i, int64_t first, int64_t last) {
    const Tensor panel = at::empty({kernel::wide_panel_bytes(K)}, at::kByte);
    const kernel::WideProduct op = {.weight = rows_of(weights[i]),
                                    .tiles = tile_memory,
                                    .rows = M,
                                    .y = outputs[i].mutable_data_ptr<float>(),
                                    .outputs = outputs[i].size(1)};
    kernel::wide_product(op, first, last, panel.mutable_data_ptr<uint8_t>());
  });
}

std::vector<Tensor> stream_on_cpu(const Tensor& x_MK, const std::vector<PackedMatrix>& weights) {
  std::vector<Tensor> outputs, of_thin, of_wide;
  std::vector<PackedMatrix> thin, wide;
  const bool has_wide = x_MK.size(0) >= kFewestWideRows && kernel::has_wide_products();
  for (const PackedMatrix& weight : weights) {
    outputs.push_back(at::empty({x_MK.size(0), weight.bytes.size(0)}, x_MK.options()));
    const bool is_wide = has_wide && is_quantized(weight.format);
    (is_wide ? wide : thin).push_back(weight);
    (is_wide ? of_wide : of_thin).push_back(outputs.back());
  }
  if (!thin.empty()) multiply_thin(x_MK, thin, of_thin);
  if (!wide.empty()) multiply_wide(x_MK, wide, of_wide);
  return outputs;
}

const OnDevice streaming_products_cpu(streaming_products_table, at::kCPU, &stream_on_cpu);

}  // namespace
}  // namespace attnres
