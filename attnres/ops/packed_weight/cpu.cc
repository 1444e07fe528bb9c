#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <vector>

#include "attnres/ops/packed_weight/kernel.h"
#include "attnres/ops/packed_weight/pack_rows.h"
#include "attnres/ops/packed_weight/packed_weight.h"
#include "attnres/ops/packed_weight/streaming_product.h"
#include "attnres/ops/tensors.h"

namespace attnres {
namespace {

using at::Tensor;

// NaN is larger than any.
double largest_number(WeightFormat format) {
  constexpr double kLargestHalf = 65504;
  switch (format) {
    case WeightFormat::f16:
      return kLargestHalf;
    case WeightFormat::q8_0:
      return 127 * kLargestHalf;
    case WeightFormat::q4_0:
      return 8 * kLargestHalf;
    case WeightFormat::q5_0:
      return 16 * kLargestHalf;
    case WeightFormat::q4_1:
    case WeightFormat::q5_1:
      return kLargestHalf;  // the least of a block
    case WeightFormat::q4_K:
    case WeightFormat::q5_K:
      return 63 * kLargestHalf;  // an offset, which alone may be a number
    case WeightFormat::q6_K:
      return 32 * 127 * kLargestHalf;
    default:
      return std::numeric_limits<float>::max();
  }
}

// Whether these bits of all numbers are set in none of them, which of NaN and infinity they are.
template <class Word>
bool none_has_all(const uint8_t* from, int64_t count, int64_t stride, Word bits) {
  std::atomic<bool> none = true;
  at::parallel_for(0, count, 1 << 16, [&](int64_t first, int64_t last) {
    bool any = false;
    for (int64_t i = first; i < last; ++i) {
      Word word;
      std::memcpy(&word, from + i * stride, sizeof(word));
      any |= (word & bits) == bits;
    }
    if (any) none = false;
  });
  return none;
}

int64_t rows_in(const Tensor& values) {
  return values.numel() / values.size(-1);
}

kernel::PackedRows packed_rows(const Tensor& rows, WeightFormat format, int64_t columns) {
  return {static_cast<const uint8_t*>(rows.const_data_ptr()), format, columns};
}

Tensor unpack_on_cpu(const PackedMatrix& weight) {
  std::vector<int64_t> shape = weight.bytes.sizes().vec();
  shape.back() = weight.columns;
  Tensor values = at::empty(shape, at::kFloat);
  auto* to = values.mutable_data_ptr<float>();
  const kernel::PackedRows rows = packed_rows(weight.bytes, weight.format, weight.columns);
  at::parallel_for(0, rows_in(values), 1 + 65536 / weight.columns,
                   [&](int64_t first, int64_t last) {
                     kernel::unpack_rows(rows, first, last, to + first * weight.columns);
                   });
  return values;
}

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

// Threads go along all rows of all weights, so that short ones wait for none.
std::vector<Tensor> stream_on_cpu(const Tensor& x_MK, const std::vector<PackedMatrix>& weights) {
  const int64_t M = x_MK.size(0), K = x_MK.size(1);
  ThinInput input(x_MK);
  std::vector<Tensor> outputs;
  int64_t rows = 0, bytes = 1;
  for (const PackedMatrix& weight : weights) {
    input.prepare(weight.format);
    const int64_t N = weight.bytes.size(0);
    outputs.push_back(at::empty({M, N}, x_MK.options()));
    rows += N;
    bytes = std::max(bytes, packed_row_bytes(weight.format, K));
  }
  at::parallel_for(0, rows, 1 + 32768 / bytes, [&](int64_t first, int64_t last) {
    int64_t before = 0;
    for (size_t i = 0; i < weights.size(); ++i) {
      const int64_t N = outputs[i].size(1);
      const int64_t begin = std::max(first - before, int64_t{0}), end = std::min(last - before, N);
      if (begin < end) {
        multiply_rows(input, packed_rows(weights[i].bytes, weights[i].format, K), outputs[i], begin,
                      end);
      }
      before += N;
    }
  });
  return outputs;
}

const OnDevice unpack_weight_cpu(unpack_weight_table, at::kCPU, &unpack_on_cpu);
const OnDevice streaming_products_cpu(streaming_products_table, at::kCPU, &stream_on_cpu);

}  // namespace

bool has_finite_numbers(const PackedMatrix& weight) {
  constexpr uint16_t kHalfExponent = 0x7c00, kBfloat16Exponent = 0x7f80;
  constexpr uint32_t kFloatExponent = 0x7f800000;
  constexpr uint8_t kFp8NotANumber = 0x7f;  // without its sign
  const auto* bytes = weight.bytes.const_data_ptr<uint8_t>();
  const WeightBlocks& blocks = blocks_of(weight.format);
  const int64_t count = weight.bytes.numel() / blocks.bytes;
  switch (weight.format) {
    case WeightFormat::f32:
      return none_has_all(bytes, count, blocks.bytes, kFloatExponent);
    case WeightFormat::bf16:
      return none_has_all(bytes, count, blocks.bytes, kBfloat16Exponent);
    case WeightFormat::fp8:
      return none_has_all(bytes, count, blocks.bytes, kFloatExponent) &&
             weight.bytes.unflatten(-1, {-1, blocks.bytes})
                     .narrow(-1, 4, blocks.numbers)
                     .bitwise_and(kFp8NotANumber)
                     .max()
                     .item<uint8_t>() < kFp8NotANumber;
    case WeightFormat::mxfp4:  // a block's exponent: 255 is NaN, and 252 and more too large
      return none_has_all(bytes, count, blocks.bytes, uint8_t{252});
    default:
      return std::all_of(blocks.halves.begin(), blocks.halves.end(), [&](int16_t half) {
        return half < 0 || none_has_all(bytes + half, count, blocks.bytes, kHalfExponent);
      });
  }
}

void pack_weight(const Tensor& values, const PackedMatrix& weight) {
  const int64_t K = values.size(-1), row_bytes = weight.bytes.size(-1);
  require(K == weight.columns && values.numel() / K == weight.bytes.numel() / row_bytes,
          "packed weight: numbers of shape {} do not fit one of {} columns", shape_of(values),
          weight.columns);
  require(blocks_of(weight.format).is_packed_here,
          "packed weight: numbers cannot be rounded to {}, which is only read",
          blocks_of(weight.format).name);
  const Tensor numbers = values.detach().to(at::kCPU, at::kFloat).contiguous();
  const double most = numbers.numel() == 0 ? 0 : numbers.abs().max().item<double>();
  require(
      most <= largest_number(weight.format),
      "packed weight: it has numbers up to {}, and its format holds {} at most; store it as f32 "
      "or bf16",
      most, largest_number(weight.format));
  const float* from = numbers.const_data_ptr<float>();
  auto* to = weight.bytes.mutable_data_ptr<uint8_t>();
  at::parallel_for(0, rows_in(values), 1 + 65536 / K, [&](int64_t first, int64_t last) {
    kernel::pack_rows(from + first * K, last - first, K, weight.format, to + first * row_bytes);
  });
}

}  // namespace attnres
