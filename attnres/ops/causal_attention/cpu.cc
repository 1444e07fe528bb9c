#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <tuple>
#include <type_traits>
#include <vector>

#include "attnres/ops/causal_attention/causal_attention.h"
#include "attnres/ops/causal_attention/kernel.h"
#include "attnres/ops/small_products/kernel.h"
#include "attnres/ops/small_products/small_products.h"
#include "attnres/ops/tensors.h"
#include "attnres/ops/transformed.h"

namespace attnres {
namespace {

using at::Tensor;
using kernel::kQueries;

constexpr int64_t kKeys = 512;  // a tile

// The sizes of one call.
struct AttentionSizes {
  int64_t B, T, H, N, G, K, window;

  AttentionSizes(const Tensor& q, const Tensor& k, int64_t window)
      : B(q.size(0)),
        T(q.size(1)),
        H(q.size(2)),
        N(k.size(1)),
        G(k.size(2)),
        K(q.size(3)),
        window(window) {}

  int64_t earlier_keys() const { return N - T; }

  float scale() const { return 1 / std::sqrt(static_cast<float>(K)); }
  int64_t padded_keys() const { return (N + 1) / 2 * 2; }
  int64_t tile_numbers() const { return std::min(kKeys, padded_keys()) * kQueries; }
};

// Numbers of a tile, each written before it is read: zeros would cost more than some products.
template <class T>
std::unique_ptr<T[]> tile_of(int64_t numbers) {
  return std::make_unique_for_overwrite<T[]>(numbers);
}

float to_float(float x) {
  return x;
}
float to_float(kernel::BFloat16 x) {
  return c10::detail::f32_from_bits(x.bits);
}
void put(float x, float* to) {
  *to = x;
}
void put(float x, kernel::BFloat16* to) {
  to->bits = c10::detail::round_to_nearest_even(x);
}

template <class Storage>
using AttentionRows = kernel::MatrixRows<Storage>;

// Rows as a right operand, transposed: [K, kQueries]. Columns beyond them are left as they are.
void transpose_right(const AttentionRows<float>& rows, float* to) {
  kernel::transpose(rows, to, kQueries);
}
void transpose_right(const AttentionRows<kernel::BFloat16>& rows, kernel::BFloat16* to) {
  kernel::transpose_in_pairs(rows, to, kQueries);
}

// Rows as a right operand [rows, K]. Those beyond them are left as they are.
void arrange_right(const AttentionRows<float>& rows, float* to) {
  for (int64_t r = 0; r < rows.rows; ++r) {
    std::copy_n(rows.data + r * rows.stride, rows.columns, to + r * rows.columns);
  }
}
void arrange_right(const AttentionRows<kernel::BFloat16>& rows, kernel::BFloat16* to) {
  kernel::pair_rows(rows, to);
}

// Calls f(b, g) for every sequence and head of keys, on all threads.
template <class F>
void for_each_head(const AttentionSizes& shape, const F& f) {
  with_small_products(shape.B * shape.G, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) f(i / shape.G, i % shape.G);
  });
}

// Queries of a head, and the keys that one of them sees.
struct AttentionBlock {
  int64_t h, first, queries;
  int64_t first_key, last_key;  // up to, not including, last_key

  // Calls f(first key, keys) for each tile.
  template <class F>
  void for_each_tile(const F& f) const {
    for (int64_t c = first_key; c < last_key; c += kKeys) f(c, std::min(kKeys, last_key - c));
  }
};

// Calls f(block) for each block of the heads that read head g.
template <class F>
void for_each_block(const AttentionSizes& shape, int64_t g, const F& f) {
  const int64_t group = shape.H / shape.G;
  for (int64_t h = g * group; h < (g + 1) * group; ++h) {
    for (int64_t first = 0; first < shape.T; first += kQueries) {
      const int64_t queries = std::min(kQueries, shape.T - first);
      const int64_t own = shape.earlier_keys() + first;
      // Even, since bfloat16 has keys in pairs.
      const int64_t first_key =
          shape.window == 0 ? 0 : std::max<int64_t>(0, own - shape.window + 1) / 2 * 2;
      f(AttentionBlock{h, first, queries, first_key, own + queries});
    }
  }
}

template <class Storage>
struct AttentionForward {
  const AttentionSizes shape;
  const Storage *q, *k, *v;
  Storage* o;
  float* lse;  // [B, H, T]

  void head(int64_t b, int64_t g) const {
    constexpr bool kPairs = !std::is_same_v<Storage, float>;
    const int64_t T = shape.T, H = shape.H, N = shape.N, G = shape.G, K = shape.K;
    const int64_t padded = shape.padded_keys(), earlier = shape.earlier_keys();
    const int64_t tile = shape.tile_numbers();
    const auto weights = tile_of<Storage>(kPairs ? tile : 0);
    const auto scores = tile_of<float>(tile);
    std::vector<Storage> values(K * padded), queries_K(K * kQueries);
    std::vector<float> sums(K * kQueries), block(K * kQueries), max(kQueries), sum(kQueries),
        rescale(kQueries);
    const Storage *k_head = k + (b * N * G + g) * K, *v_head = v + (b * N * G + g) * K;
    kernel::transpose(AttentionRows<Storage>{v_head, G * K, N, K}, values.data(), padded);
    for_each_block(shape, g, [&](const AttentionBlock& of) {
      const int64_t h = of.h, first = of.first, queries = of.queries;
      const int64_t at = ((b * T + first) * H + h) * K;
      transpose_right(AttentionRows<Storage>{q + at, H * K, queries, K}, queries_K.data());
      std::fill(max.begin(), max.end(), -1e30f);
      std::fill(sum.begin(), sum.end(), 0.0f);
      of.for_each_tile([&](int64_t c, int64_t n) {
        const int64_t even = (n + 1) / 2 * 2;
        const bool goes_on = c > of.first_key;
        multiply(n, kQueries, K, k_head + c * G * K, G * K, queries_K.data(), kQueries,
                 scores.get(), kQueries, false);
        Storage* to = weights.get();
        if constexpr (!kPairs) to = scores.get();
        kernel::attention_softmax({.tile = {c, n, earlier + first, shape.window, shape.scale()},
                                   .scores = scores.get(),
                                   .weights = to,
                                   .max = max.data(),
                                   .sum = sum.data(),
                                   .rescale = rescale.data()});
        for (int64_t i = 0; goes_on && i < K * kQueries; ++i) sums[i] *= rescale[i % kQueries];
        multiply(K, kQueries, kPairs ? even : n, values.data() + c, padded, to, kQueries,
                 sums.data(), kQueries, goes_on);
      });
      kernel::transpose(AttentionRows<float>{sums.data(), kQueries, K, queries}, block.data(), K);
      for (int64_t i = 0; i < queries; ++i) {
        const float factor = 1 / sum[i];
        for (int64_t d = 0; d < K; ++d) put(block[i * K + d] * factor, o + at + i * H * K + d);
        lse[(b * H + h) * T + first + i] = max[i] + std::log(sum[i]);
      }
    });
  }
};

// Where the numbers of one call lie.
template <class Storage>
struct AttentionBackwardCall {
  const AttentionSizes shape;
  const Storage *q, *k, *v, *o, *grad_o;
  const float *lse, *grad_lse;  // the latter null where it is not wanted
  Storage *grad_q, *grad_k, *grad_v;
};

// The backward of one head of keys and the heads that read it, block by block.
template <class Storage>
class HeadBackward {
 public:
  HeadBackward(const AttentionBackwardCall<Storage>& of, int64_t b, int64_t g)
      : of_(of),
        b_(b),
        g_(g),
        k_head_(of.k + (b * of.shape.N * of.shape.G + g) * K_),
        v_head_(of.v + (b * of.shape.N * of.shape.G + g) * K_) {
    kernel::transpose(AttentionRows<Storage>{k_head_, key_stride_, of.shape.N, K_}, keys_K_.data(),
                      padded_);
  }

  void run() {
    for_each_block(of_.shape, g_, [&](const AttentionBlock& block) {
      read_queries(block);
      block.for_each_tile([&](int64_t c, int64_t n) { add_tile(block, c, n); });
      write_queries(block);
    });
    write_keys();
  }

 private:
  static constexpr bool kPairs = !std::is_same_v<Storage, float>;

  int64_t place(const AttentionBlock& block) const {
    return ((b_ * of_.shape.T + block.first) * of_.shape.H + block.h) * K_;
  }

  void read_queries(const AttentionBlock& block) {
    const int64_t at = place(block);
    const AttentionRows<Storage> queries = {of_.q + at, stride_, block.queries, K_},
                                 grads = {of_.grad_o + at, stride_, block.queries, K_};
    transpose_right(queries, q_K_.data());
    transpose_right(grads, do_K_.data());
    arrange_right(queries, q_rows_.data());
    arrange_right(grads, do_rows_.data());
    const int64_t of_queries = (b_ * of_.shape.H + block.h) * of_.shape.T + block.first;
    const float* lse = of_.lse + of_queries;
    for (int64_t i = 0; i < kQueries; ++i) {
      // A query that is not there has weights of zero.
      lse_[i] = i < block.queries ? lse[i] : 1e30f;
      const bool has_lse = of_.grad_lse != nullptr && i < block.queries;
      along_[i] = has_lse ? -of_.grad_lse[of_queries + i] : 0;
      for (int64_t d = 0; i < block.queries && d < K_; ++d) {
        const int64_t number = at + i * stride_ + d;
        along_[i] += to_float(of_.o[number]) * to_float(of_.grad_o[number]);
      }
    }
  }

  // A tile of n keys from c on.
  void add_tile(const AttentionBlock& block, int64_t c, int64_t n) {
    const AttentionSizes& shape = of_.shape;
    const int64_t even = (n + 1) / 2 * 2, rows = c * key_stride_;
    multiply(n, kQueries, K_, k_head_ + rows, key_stride_, q_K_.data(), kQueries, scores_.get(),
             kQueries, false);
    multiply(n, kQueries, K_, v_head_ + rows, key_stride_, do_K_.data(), kQueries,
             grad_weights_.get(), kQueries, false);
    Storage *p = weights_.get(), *ds = grad_scores_.get(), *right = grad_scores_right_.get();
    if constexpr (!kPairs) right = ds;
    kernel::attention_softmax_backward(
        {.tile = {c, n, shape.earlier_keys() + block.first, shape.window, shape.scale()},
         .scores = scores_.get(),
         .grad_weights = grad_weights_.get(),
         .lse = lse_.data(),
         .along = along_.data(),
         .weights = p,
         .grad_scores = ds,
         .grad_scores_right = right});
    multiply(n, K_, kQueries, p, kQueries, do_rows_.data(), K_, sums_v_.data() + c * K_, K_, true);
    multiply(n, K_, kQueries, ds, kQueries, q_rows_.data(), K_, sums_k_.data() + c * K_, K_, true);
    multiply(K_, kQueries, kPairs ? even : n, keys_K_.data() + c, padded_, right, kQueries,
             sums_q_.data(), kQueries, c > block.first_key);
  }

  void write_queries(const AttentionBlock& block) {
    kernel::transpose(AttentionRows<float>{sums_q_.data(), kQueries, K_, block.queries},
                      rows_.data(), K_);
    Storage* to = of_.grad_q + place(block);
    for (int64_t i = 0; i < block.queries; ++i) {
      for (int64_t d = 0; d < K_; ++d) put(rows_[i * K_ + d], to + i * stride_ + d);
    }
  }

  void write_keys() const {
    for (int64_t t = 0; t < of_.shape.N; ++t) {
      for (int64_t d = 0; d < K_; ++d) {
        const int64_t to = ((b_ * of_.shape.N + t) * of_.shape.G + g_) * K_ + d;
        put(sums_k_[t * K_ + d], of_.grad_k + to);
        put(sums_v_[t * K_ + d], of_.grad_v + to);
      }
    }
  }

  const AttentionBackwardCall<Storage>& of_;
  const int64_t b_, g_, K_ = of_.shape.K, stride_ = of_.shape.H * K_,
                        key_stride_ = of_.shape.G * K_, padded_ = of_.shape.padded_keys(),
                        tile_ = of_.shape.tile_numbers();
  const Storage *const k_head_, *const v_head_;
  const std::unique_ptr<Storage[]> weights_ = tile_of<Storage>(tile_),
                                   grad_scores_ = tile_of<Storage>(tile_),
                                   grad_scores_right_ = tile_of<Storage>(kPairs ? tile_ : 0);
  const std::unique_ptr<float[]> scores_ = tile_of<float>(tile_),
                                 grad_weights_ = tile_of<float>(tile_);
  std::vector<Storage> keys_K_ = std::vector<Storage>(K_ * padded_), q_K_ = block_of<Storage>(),
                       do_K_ = block_of<Storage>(), q_rows_ = block_of<Storage>(),
                       do_rows_ = block_of<Storage>();
  std::vector<float> sums_q_ = block_of<float>(), rows_ = block_of<float>(),
                     sums_k_ = std::vector<float>(of_.shape.N * K_),
                     sums_v_ = std::vector<float>(of_.shape.N * K_),
                     lse_ = std::vector<float>(kQueries), along_ = std::vector<float>(kQueries);

  template <class T>
  std::vector<T> block_of() const {
    return std::vector<T>(K_ * kQueries);
  }
};

template <class F>
void with_operand_type(at::ScalarType dtype, F f) {
  dtype == at::kFloat ? f(float{}) : f(kernel::BFloat16{});
}

std::tuple<Tensor, Tensor> attention_cpu(const Tensor& q_BTHK, const Tensor& k_BNGK,
                                         const Tensor& v_BNGK, int64_t window) {
  require(window >= 0, "tiled_causal_attention: expected a window of 0 or more, got {}", window);
  if (!can_tile_attention(q_BTHK, k_BNGK, v_BNGK)) {
    fail(
        "tiled_causal_attention: expected q [B, T, H, K], and k and v [B, N, G, K] with N at least "
        "T, G a divisor of H and an even K, in float32 or bfloat16 on a CPU with AVX-512; they are "
        "{}, {} "
        "and {}",
        shape_of(q_BTHK), shape_of(k_BNGK), shape_of(v_BNGK));
  }
  const Tensor q = q_BTHK.contiguous(), k = k_BNGK.contiguous(), v = v_BNGK.contiguous();
  const Tensor o = empty_like_rows(q),
               lse = at::empty({q.size(0), q.size(2), q.size(1)}, q.options().dtype(at::kFloat));
  with_operand_type(q.scalar_type(), [&](auto storage) {
    using Storage = decltype(storage);
    const AttentionForward<Storage> forward{
        AttentionSizes(q, k, window), data<const Storage>(q), data<const Storage>(k),
        data<const Storage>(v),       data<Storage>(o),       data<float>(lse)};
    for_each_head(forward.shape, [&](int64_t b, int64_t g) { forward.head(b, g); });
  });
  return {o, lse};
}

std::tuple<Tensor, Tensor, Tensor> attention_backward_cpu(
    const Tensor& grad_o, const Tensor& q_BTHK, const Tensor& k_BNGK, const Tensor& v_BNGK,
    const Tensor& o, const Tensor& lse, const std::optional<Tensor>& grad_lse, int64_t window) {
  const Tensor q = q_BTHK.contiguous(), k = k_BNGK.contiguous(), v = v_BNGK.contiguous();
  const Tensor grads = grad_o.contiguous(), grads_lse = contiguous_if_given(grad_lse);
  const Tensor grad_q = empty_like_rows(q), grad_k = empty_like_rows(k),
               grad_v = empty_like_rows(v);
  with_operand_type(q.scalar_type(), [&](auto storage) {
    using Storage = decltype(storage);
    const AttentionBackwardCall<Storage> call{
        AttentionSizes(q, k, window), data<const Storage>(q),       data<const Storage>(k),
        data<const Storage>(v),       data<const Storage>(o),       data<const Storage>(grads),
        data<const float>(lse),       data<const float>(grads_lse), data<Storage>(grad_q),
        data<Storage>(grad_k),        data<Storage>(grad_v)};
    for_each_head(call.shape, [&](int64_t b, int64_t g) { HeadBackward(call, b, g).run(); });
  });
  return {grad_q, grad_k, grad_v};
}

}  // namespace

bool can_tile_attention(const Tensor& q_BTHK, const Tensor& k_BNGK, const Tensor& v_BNGK) {
  const at::ScalarType dtype = q_BTHK.scalar_type();
  return has_small_products(dtype) && has_kernel(q_BTHK) &&
         !is_transformed({q_BTHK, k_BNGK, v_BNGK}) && q_BTHK.dim() == 4 &&
         q_BTHK.size(3) % 2 == 0 && q_BTHK.numel() > 0 && k_BNGK.sizes() == v_BNGK.sizes() &&
         k_BNGK.dim() == 4 && k_BNGK.size(0) == q_BTHK.size(0) &&
         k_BNGK.size(1) >= q_BTHK.size(1) && k_BNGK.size(3) == q_BTHK.size(3) &&
         q_BTHK.size(2) % k_BNGK.size(2) == 0 && k_BNGK.scalar_type() == dtype &&
         v_BNGK.scalar_type() == dtype;
}

TORCH_LIBRARY_IMPL(attnres, CPU, m) {
  m.impl("tiled_causal_attention", &attention_cpu);
  m.impl("tiled_causal_attention_backward", &attention_backward_cpu);
}

}  // namespace attnres
