// The kernels for every instruction set that Highway knows, chosen at run time.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "attnres/ops/depth_attention/kernel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attnres/ops/depth_attention/kernel_simd.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace attnres::kernel {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// D is the tag of a vector of the compute type; memory holds the compute type or bfloat16.
template <class D>
HWY_INLINE hn::Vec<D> load(D d, const hn::TFromD<D>* from) {
  return hn::LoadU(d, from);
}

template <class D>
HWY_INLINE hn::Vec<D> load(D d, const BFloat16* from) {
  const hn::Rebind<uint16_t, D> d16;
  const hn::RebindToUnsigned<D> d32;
  const auto halves = hn::LoadU(d16, reinterpret_cast<const uint16_t*>(from));
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, halves)));
}

template <class D>
HWY_INLINE void store(D d, hn::Vec<D> v, hn::TFromD<D>* to) {
  hn::StoreU(v, d, to);
}

template <class D>
HWY_INLINE void store(D, hn::Vec<D> v, BFloat16* to) {
  const hn::Rebind<uint16_t, D> d16;
  const hn::RebindToUnsigned<D> d32;
  const hn::RebindToSigned<D> d32_signed;
  const auto bits = hn::BitCast(d32, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1));
  const auto to_even = hn::Add(odd, hn::Set(d32, 0x7fff));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, to_even));
  const auto is_nan = hn::RebindMask(d32, hn::IsNaN(v));
  const auto halves = hn::IfThenElse(is_nan, hn::Set(d32, 0x7fc0), rounded);
  hn::StoreU(hn::DemoteTo(d16, hn::BitCast(d32_signed, halves)), d16,
             reinterpret_cast<uint16_t*>(to));
}

// The end of a row, shorter than a vector. Missing channels read as zeros, which change no sum.
template <class D, class Storage>
HWY_INLINE hn::Vec<D> load_part(D d, const Storage* from, size_t count) {
  Storage whole[hn::MaxLanes(d)] = {};
  std::copy_n(from, count, whole);
  return load(d, whole);
}

template <class D, class Storage>
HWY_INLINE void store_part(D d, hn::Vec<D> v, Storage* to, size_t count) {
  Storage whole[hn::MaxLanes(d)];
  store(d, v, whole);
  std::copy_n(whole, count, to);
}

template <class T>
struct DotPair {
  T with_a, with_b;
};

// sum a_k v_k and sum b_k v_k in one pass over v.
template <class Storage, class T = Compute<Storage>>
HWY_INLINE DotPair<T> dot_pair(const Storage* v, const Storage* a, const T* b, size_t width) {
  const hn::ScalableTag<T> d;
  const size_t lanes = hn::Lanes(d);
  auto a0 = hn::Zero(d), a1 = hn::Zero(d), b0 = hn::Zero(d), b1 = hn::Zero(d);
  size_t k = 0;
  for (; k + 2 * lanes <= width; k += 2 * lanes) {
    const auto v0 = load(d, v + k), v1 = load(d, v + k + lanes);
    a0 = hn::MulAdd(load(d, a + k), v0, a0);
    a1 = hn::MulAdd(load(d, a + k + lanes), v1, a1);
    b0 = hn::MulAdd(load(d, b + k), v0, b0);
    b1 = hn::MulAdd(load(d, b + k + lanes), v1, b1);
  }
  if (k + lanes <= width) {
    const auto v0 = load(d, v + k);
    a0 = hn::MulAdd(load(d, a + k), v0, a0);
    b0 = hn::MulAdd(load(d, b + k), v0, b0);
    k += lanes;
  }
  if (k < width) {
    const auto v1 = load_part(d, v + k, width - k);
    a1 = hn::MulAdd(load_part(d, a + k, width - k), v1, a1);
    b1 = hn::MulAdd(load_part(d, b + k, width - k), v1, b1);
  }
  return {hn::GetLane(hn::SumOfLanes(d, hn::Add(a0, a1))),
          hn::GetLane(hn::SumOfLanes(d, hn::Add(b0, b1)))};
}

// sum_n weight_n row_n, with the accumulators of four vectors held in registers over all rows.
template <class Storage, class T = Compute<Storage>>
HWY_INLINE void weighted_sum(const std::vector<const Storage*>& rows, const std::vector<T>& weights,
                             size_t width, Storage* output) {
  const hn::ScalableTag<T> d;
  const size_t lanes = hn::Lanes(d);
  size_t k = 0;
  for (; k + 4 * lanes <= width; k += 4 * lanes) {
    auto h0 = hn::Zero(d), h1 = hn::Zero(d), h2 = hn::Zero(d), h3 = hn::Zero(d);
    for (size_t n = 0; n < rows.size(); ++n) {
      const auto weight = hn::Set(d, weights[n]);
      const Storage* v = rows[n] + k;
      h0 = hn::MulAdd(weight, load(d, v), h0);
      h1 = hn::MulAdd(weight, load(d, v + lanes), h1);
      h2 = hn::MulAdd(weight, load(d, v + 2 * lanes), h2);
      h3 = hn::MulAdd(weight, load(d, v + 3 * lanes), h3);
    }
    store(d, h0, output + k);
    store(d, h1, output + k + lanes);
    store(d, h2, output + k + 2 * lanes);
    store(d, h3, output + k + 3 * lanes);
  }
  for (; k + lanes <= width; k += lanes) {
    auto h = hn::Zero(d);
    for (size_t n = 0; n < rows.size(); ++n) {
      h = hn::MulAdd(hn::Set(d, weights[n]), load(d, rows[n] + k), h);
    }
    store(d, h, output + k);
  }
  if (k < width) {
    auto h = hn::Zero(d);
    for (size_t n = 0; n < rows.size(); ++n) {
      h = hn::MulAdd(hn::Set(d, weights[n]), load_part(d, rows[n] + k, width - k), h);
    }
    store_part(d, h, output + k, width - k);
  }
}

template <class T>
void softmax(std::vector<T>& x) {
  const T max = *std::max_element(x.begin(), x.end());
  T sum = 0;
  for (T& value : x) sum += value = std::exp(value - max);
  for (T& value : x) value /= sum;
}

template <class Storage>
void gather_rows(const DepthAttentionInputs<Storage>& in, int64_t token,
                 std::vector<const Storage*>& rows) {
  for (int64_t n = 0; n < in.num_sources; ++n) rows[n] = in.sources_N[n] + token * in.width;
}

template <class Storage>
void forward(const DepthAttentionForward<Storage>& op, int64_t first, int64_t last) {
  using T = Compute<Storage>;
  const auto& in = op.inputs;
  std::vector<const Storage*> rows(in.num_sources);
  std::vector<T> weights(in.num_sources);
  for (int64_t t = first; t < last; ++t) {
    gather_rows(in, t, rows);
    for (int64_t n = 0; n < in.num_sources; ++n) {
      const auto [squares, dot] = dot_pair(rows[n], rows[n], in.folded_query_D, in.width);
      const T inverse_rms = static_cast<T>(1 / std::sqrt(double{squares} / in.width + op.eps));
      op.inverse_rms_NT[n * in.num_tokens + t] = inverse_rms;
      weights[n] = dot * inverse_rms;
    }
    softmax(weights);
    for (int64_t n = 0; n < in.num_sources; ++n) {
      op.weights_NT[n * in.num_tokens + t] = weights[n];
    }
    weighted_sum(rows, weights, in.width, op.output_TD + t * in.width);
  }
}

// What one source's gradient is made of: dv = weight dh + query_part (w g) - value_part v, and its
// part in the folded query's gradient is query_part v.
template <class T>
struct SourceGradient {
  T weight, query_part, value_part;
};

template <class Storage>
struct GradientRow {
  const Storage* source;
  Storage* grad;  // null where not wanted
  SourceGradient<Compute<Storage>> parts;
};

// Loads and stores either whole vectors or `count` channels.
template <bool kWhole, class Storage, class T = Compute<Storage>>
HWY_INLINE void add_gradients(const std::vector<GradientRow<Storage>>& rows, size_t k, size_t count,
                              const Storage* grad_output, const T* folded_query,
                              T* grad_folded_query) {
  const hn::ScalableTag<T> d;
  const auto read = [&](const auto* from) HWY_ATTR {
    return kWhole ? load(d, from + k) : load_part(d, from + k, count);
  };
  const auto write = [&](auto v, auto* to) HWY_ATTR {
    kWhole ? store(d, v, to + k) : store_part(d, v, to + k, count);
  };
  const auto dh = read(grad_output), query = read(folded_query);
  auto dq = read(grad_folded_query);
  for (const auto& [source, grad, parts] : rows) {
    const auto v = read(source);
    const auto query_part = hn::Set(d, parts.query_part);
    dq = hn::MulAdd(query_part, v, dq);
    if (grad) {
      auto dv = hn::Mul(hn::Set(d, parts.weight), dh);
      dv = hn::MulAdd(query_part, query, dv);
      write(hn::NegMulAdd(hn::Set(d, parts.value_part), v, dv), grad);
    }
  }
  write(dq, grad_folded_query);
}

template <class Storage, class T = Compute<Storage>>
void backward(const DepthAttentionBackward<Storage>& op, int64_t first, int64_t last,
              T* grad_folded_query) {
  const auto& in = op.inputs;
  std::vector<GradientRow<Storage>> rows(in.num_sources);
  std::vector<T> scores(in.num_sources), grad_weights(in.num_sources);
  for (int64_t t = first; t < last; ++t) {
    const Storage* grad_output = op.grad_output_TD + t * in.width;
    T mean_grad_weight = 0;
    for (int64_t n = 0; n < in.num_sources; ++n) {
      const int64_t nt = n * in.num_tokens + t;
      const Storage* source = in.sources_N[n] + t * in.width;
      const auto [grad_weight, dot] = dot_pair(source, grad_output, in.folded_query_D, in.width);
      grad_weights[n] = grad_weight + (op.grad_weights_NT ? op.grad_weights_NT[nt] : T{0});
      scores[n] = dot * op.inverse_rms_NT[nt];
      mean_grad_weight += op.weights_NT[nt] * grad_weights[n];
    }
    for (int64_t n = 0; n < in.num_sources; ++n) {
      const int64_t nt = n * in.num_tokens + t;
      const T inverse_rms = op.inverse_rms_NT[nt], weight = op.weights_NT[nt];
      const T grad_score = weight * (grad_weights[n] - mean_grad_weight);
      Storage* grad = op.grad_sources_N[n];
      rows[n] = {in.sources_N[n] + t * in.width,
                 grad ? grad + t * in.width : nullptr,
                 {weight, grad_score * inverse_rms,
                  grad_score * scores[n] * inverse_rms * inverse_rms / in.width}};
    }
    const size_t width = in.width, lanes = hn::Lanes(hn::ScalableTag<T>());
    size_t k = 0;
    for (; k + lanes <= width; k += lanes) {
      add_gradients<true>(rows, k, lanes, grad_output, in.folded_query_D, grad_folded_query);
    }
    if (k < width) {
      add_gradients<false>(rows, k, width - k, grad_output, in.folded_query_D, grad_folded_query);
    }
  }
}

void forward_f32(const DepthAttentionForward<float>& op, int64_t first, int64_t last) {
  forward(op, first, last);
}
void forward_f64(const DepthAttentionForward<double>& op, int64_t first, int64_t last) {
  forward(op, first, last);
}
void forward_bf16(const DepthAttentionForward<BFloat16>& op, int64_t first, int64_t last) {
  forward(op, first, last);
}
void backward_f32(const DepthAttentionBackward<float>& op, int64_t first, int64_t last,
                  float* grad_folded_query_D) {
  backward(op, first, last, grad_folded_query_D);
}
void backward_f64(const DepthAttentionBackward<double>& op, int64_t first, int64_t last,
                  double* grad_folded_query_D) {
  backward(op, first, last, grad_folded_query_D);
}
void backward_bf16(const DepthAttentionBackward<BFloat16>& op, int64_t first, int64_t last,
                   float* grad_folded_query_D) {
  backward(op, first, last, grad_folded_query_D);
}

}  // namespace HWY_NAMESPACE
}  // namespace attnres::kernel
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnres::kernel {

HWY_EXPORT(forward_f32);
HWY_EXPORT(forward_f64);
HWY_EXPORT(forward_bf16);
HWY_EXPORT(backward_f32);
HWY_EXPORT(backward_f64);
HWY_EXPORT(backward_bf16);

std::vector<std::string> instruction_sets() {
  std::vector<std::string> names;
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    names.emplace_back(hwy::TargetName(target));
  }
  return names;
}

void depth_attention_forward(const DepthAttentionForward<float>& op, int64_t first, int64_t last) {
  HWY_DYNAMIC_DISPATCH(forward_f32)(op, first, last);
}
void depth_attention_forward(const DepthAttentionForward<double>& op, int64_t first, int64_t last) {
  HWY_DYNAMIC_DISPATCH(forward_f64)(op, first, last);
}
void depth_attention_forward(const DepthAttentionForward<BFloat16>& op, int64_t first,
                             int64_t last) {
  HWY_DYNAMIC_DISPATCH(forward_bf16)(op, first, last);
}
void depth_attention_backward(const DepthAttentionBackward<float>& op, int64_t first, int64_t last,
                              float* grad_folded_query_D) {
  HWY_DYNAMIC_DISPATCH(backward_f32)(op, first, last, grad_folded_query_D);
}
void depth_attention_backward(const DepthAttentionBackward<double>& op, int64_t first, int64_t last,
                              double* grad_folded_query_D) {
  HWY_DYNAMIC_DISPATCH(backward_f64)(op, first, last, grad_folded_query_D);
}
void depth_attention_backward(const DepthAttentionBackward<BFloat16>& op, int64_t first,
                              int64_t last, float* grad_folded_query_D) {
  HWY_DYNAMIC_DISPATCH(backward_bf16)(op, first, last, grad_folded_query_D);
}

}  // namespace attnres::kernel
#endif  // HWY_ONCE
