// The pass over sources, for one instruction set. Tokens are taken in tiles and sources in groups,
// so that what is read from memory for the scores is still in the core's cache for the weighted
// sums; between groups the sums are rescaled as in online softmax.
#if defined(ATTNRES_PASS_OVER_SOURCES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNRES_PASS_OVER_SOURCES_INL_H_
#undef ATTNRES_PASS_OVER_SOURCES_INL_H_
#else
#define ATTNRES_PASS_OVER_SOURCES_INL_H_
#endif

#include <unistd.h>

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "attnres/ops/depth_attention/dots-inl.h"
#include "attnres/ops/depth_attention/kernel.h"
#include "attnres/ops/simd-inl.h"
#include "hwy/contrib/math/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnres::kernel {
namespace HWY_NAMESPACE {

// A group's rows at one token lie a whole tensor apart, often in the same set of a cache that has 8
// to 16 ways; more than these would push each other out.
inline constexpr int64_t kMostSourcesAGroup = 12;
// Tokens whose scores are worth holding.
inline constexpr int64_t kMostTokensATile = 128;
// What a tile of a group may take of the core's own cache: half of it. The longer the run of rows
// that is read of one source, the faster memory gives them.
inline int64_t tile_bytes() {
  static const int64_t bytes =
      std::clamp<int64_t>(sysconf(_SC_LEVEL2_CACHE_SIZE) / 2, 128 << 10, 512 << 10);
  return bytes;
}

struct Tiling {
  int64_t group;   // sources
  int64_t tokens;  // a tile
  int64_t padded;  // tokens of a row of scores: a tile in whole vectors

  // So many rows of every source of the group and so many others of a tile are in cache together;
  // it has no more tokens than there are, and whole vectors of them where it can.
  Tiling(int64_t num_sources, int64_t rows_a_source, int64_t other_rows, int64_t row_bytes,
         int64_t lanes, int64_t num_tokens) {
    const int64_t groups = (num_sources + kMostSourcesAGroup - 1) / kMostSourcesAGroup;
    group = (num_sources + groups - 1) / groups;
    const int64_t rows = group * rows_a_source + other_rows;
    const int64_t most = std::clamp<int64_t>(num_tokens, 1, kMostTokensATile);
    tokens = std::clamp<int64_t>(tile_bytes() / (rows * row_bytes), 1, most);
    if (tokens > lanes) tokens = tokens / lanes * lanes;
    padded = (tokens + lanes - 1) / lanes * lanes;
  }
};

// Calls f.template operator()<Q>() with Q = count, from 1 to kSitesATurn.
template <class F>
HWY_INLINE void with_sites(int64_t count, const F& f) {
  switch (count) {
    case 1:
      return f.template operator()<1>();
    case 2:
      return f.template operator()<2>();
    case 3:
      return f.template operator()<3>();
    default:
      return f.template operator()<4>();
  }
}

// out_q = scale_q before_q + sum_n weights_q[n] rows[n], in the order of n. `before` may be null:
// nothing. A step along a row holds the sums of U vectors of Q sites in registers.
template <int Q, class Storage, class Before, class Out, class T>
HWY_INLINE void weighted_sums(const std::vector<const Storage*>& rows, int64_t num_rows,
                              const T* weights, int64_t site_stride, int64_t row_stride,
                              const std::array<const Before*, kSitesATurn>& before, const T* scales,
                              int64_t scale_stride, const std::array<Out*, kSitesATurn>& out,
                              bool streaming, size_t width) {
  constexpr int U = HWY_MAX_BYTES >= 64 || Q <= 2 ? 4 : 2;
  const hn::ScalableTag<T> d;
  const size_t lanes = hn::Lanes(d);
  using V = hn::Vec<decltype(d)>;

  const auto step = [&]<int kVectors>(size_t k, auto part) HWY_ATTR {
    V sum[Q][kVectors];
    for (int q = 0; q < Q; ++q) {
      for (int u = 0; u < kVectors; ++u) {
        sum[q][u] = before[q] == nullptr ? hn::Zero(d)
                                         : hn::Mul(hn::Set(d, scales[q * scale_stride]),
                                                   load(d, before[q] + k + u * lanes, part));
      }
    }
    for (int64_t n = 0; n < num_rows; ++n) {
      V v[kVectors];
      for (int u = 0; u < kVectors; ++u) v[u] = load(d, rows[n] + k + u * lanes, part);
      for (int q = 0; q < Q; ++q) {
        const V weight = hn::Set(d, weights[q * site_stride + n * row_stride]);
        for (int u = 0; u < kVectors; ++u) sum[q][u] = hn::MulAdd(weight, v[u], sum[q][u]);
      }
    }
    for (int q = 0; q < Q; ++q) {
      for (int u = 0; u < kVectors; ++u) {
        put(d, sum[q][u], out[q] + k + u * lanes, streaming, part);
      }
    }
  };
  for_each_vectors<U>(d, width, step);
}

template <class Storage>
class ForwardPass {
 public:
  using T = Compute<Storage>;

  ForwardPass(const DepthAttentionForward<Storage>& op, int64_t num_tokens)
      : op_(op),
        N_(op.inputs.num_sources),
        S_(op.inputs.num_sites),
        D_(op.inputs.width),
        tiling_(N_, 1, 0, D_ * sizeof(Storage), hn::Lanes(hn::ScalableTag<T>()), num_tokens),
        scores_(S_ * N_ * tiling_.padded),
        weights_(S_ * N_ * tiling_.padded),
        inverse_rms_(tiling_.padded),
        max_(S_ * tiling_.padded),
        sum_(S_ * tiling_.padded),
        scale_(S_ * tiling_.padded),
        rows_(tiling_.group) {
    if (tiling_.group < N_) partial_.resize(S_ * tiling_.tokens * D_);
    streaming_ = std::all_of(op.outputs_S, op.outputs_S + S_, [&](const Storage* output) {
      return worth_streaming(output, op.inputs.num_tokens, D_);
    });
  }

  void run(int64_t first, int64_t last) {
    for (int64_t t = first; t < last; t += tiling_.tokens) {
      tile(t, std::min(tiling_.tokens, last - t));
    }
  }

 private:
  void tile(int64_t first, int64_t tokens) {
    std::fill(max_.begin(), max_.end(), std::numeric_limits<T>::lowest() / 2);
    std::fill(sum_.begin(), sum_.end(), T{0});
    for (int64_t n = 0; n < N_; n += tiling_.group) {
      const int64_t end = std::min(N_, n + tiling_.group);
      for (int64_t i = n; i < end; ++i) score(i, first, tokens);
      for (int64_t s = 0; s < S_; ++s) exponentiate(s, n, end);
      for (int64_t t = 0; t < tokens; ++t) sum_group(n, end, first, t);
    }
    for (int64_t s = 0; s < S_; ++s) save(s, first, tokens);
  }

  T* scores(int64_t s, int64_t n) { return &scores_[(s * N_ + n) * tiling_.padded]; }
  T* weights(int64_t s, int64_t n) { return &weights_[(s * N_ + n) * tiling_.padded]; }

  // Source n's scores at all sites.
  void score(int64_t n, int64_t first, int64_t tokens) {
    const hn::ScalableTag<T> d;
    for (int64_t begin = 0; begin < S_; begin += kSitesATurn) {
      const bool squares = begin == 0 && !op_.rms_known_N[n];
      with_sites(std::min(S_ - begin, kSitesATurn), [&]<int Q>() HWY_ATTR {
        std::array<const T*, kSitesATurn> queries = {};
        for (int q = 0; q < Q; ++q) queries[q] = op_.inputs.folded_queries_SD + (begin + q) * D_;
        for (int64_t t = 0; t < tokens; ++t) {
          T* sums[Q];
          for (int q = 0; q < Q; ++q) sums[q] = scores(begin + q, n) + t;
          const Storage* v = op_.inputs.sources_N[n] + (first + t) * D_;
          squares ? dots<Q, true>(v, queries, D_, sums, &inverse_rms_[t])
                  : dots<Q, false>(v, queries, D_, sums, static_cast<T*>(nullptr));
        }
      });
    }
    if (op_.rms_known_N[n]) {
      std::copy_n(op_.inverse_rms_N[n] + first, tokens, inverse_rms_.begin());
    } else {
      const auto width = hn::Set(d, static_cast<T>(D_)), eps = hn::Set(d, static_cast<T>(op_.eps));
      for (int64_t t = 0; t < tiling_.padded; t += hn::Lanes(d)) {
        const auto mean = hn::Div(load(d, &inverse_rms_[t]), width);
        store(d, hn::Div(hn::Set(d, T{1}), hn::Sqrt(hn::Add(mean, eps))), &inverse_rms_[t]);
      }
      if (op_.inverse_rms_N[n] != nullptr) {
        std::copy_n(inverse_rms_.begin(), tokens, op_.inverse_rms_N[n] + first);
      }
    }
    for (int64_t s = 0; s < S_; ++s) {
      for (int64_t t = 0; t < tiling_.padded; t += hn::Lanes(d)) {
        T* score = scores(s, n) + t;
        store(d, hn::Mul(load(d, score), load(d, &inverse_rms_[t])), score);
      }
    }
  }

  // The weights of sources [n, end) at site s, relative to the largest score so far; and what the
  // sums of earlier groups are to be multiplied by. At the end both are divided by ell, if wanted.
  void exponentiate(int64_t s, int64_t n, int64_t end) {
    const hn::ScalableTag<T> d;
    const bool divide = op_.complete && end == N_;
    for (int64_t t = 0; t < tiling_.padded; t += hn::Lanes(d)) {
      T *max = &max_[s * tiling_.padded + t], *sum = &sum_[s * tiling_.padded + t];
      auto m = load(d, max);
      for (int64_t i = n; i < end; ++i) m = hn::Max(m, load(d, scores(s, i) + t));
      auto scale = hn::Exp(d, hn::Sub(load(d, max), m));
      auto ell = hn::Mul(scale, load(d, sum));
      for (int64_t i = n; i < end; ++i) {
        const auto weight = hn::Exp(d, hn::Sub(load(d, scores(s, i) + t), m));
        ell = hn::Add(ell, weight);
        store(d, weight, weights(s, i) + t);
      }
      store(d, m, max);
      store(d, ell, sum);
      if (divide) {
        scale = hn::Div(scale, ell);
        for (int64_t i = n; i < end; ++i) {
          T* weight = weights(s, i) + t;
          store(d, hn::Div(load(d, weight), ell), weight);
        }
      }
      store(d, scale, &scale_[s * tiling_.padded + t]);
    }
  }

  // Adds sources [n, end) of one token to the sums of all sites.
  void sum_group(int64_t n, int64_t end, int64_t first, int64_t t) {
    for (int64_t i = n; i < end; ++i) rows_[i - n] = op_.inputs.sources_N[i] + (first + t) * D_;
    for (int64_t begin = 0; begin < S_; begin += kSitesATurn) {
      with_sites(std::min(S_ - begin, kSitesATurn), [&]<int Q>() HWY_ATTR {
        std::array<const T*, kSitesATurn> before = {};
        std::array<T*, kSitesATurn> partial = {};
        std::array<Storage*, kSitesATurn> output = {};
        for (int q = 0; q < Q; ++q) {
          if (tiling_.group < N_) partial[q] = &partial_[((begin + q) * tiling_.tokens + t) * D_];
          if (n > 0) before[q] = partial[q];
          output[q] = op_.outputs_S[begin + q] + (first + t) * D_;
        }
        const auto sum = [&](const auto& to, bool streaming) HWY_ATTR {
          weighted_sums<Q>(rows_, end - n, weights(begin, n) + t, N_ * tiling_.padded,
                           tiling_.padded, before, &scale_[begin * tiling_.padded + t],
                           tiling_.padded, to, streaming, D_);
        };
        end < N_ ? sum(partial, false) : sum(output, streaming_);
      });
    }
  }

  void save(int64_t s, int64_t first, int64_t tokens) {
    const hn::ScalableTag<T> d;
    const T *max = &max_[s * tiling_.padded], *sum = &sum_[s * tiling_.padded];
    const int64_t T_all = op_.inputs.num_tokens;
    for (int64_t n = 0; n < N_ && op_.weights_SNT != nullptr; ++n) {
      if (tiling_.group < N_) {  // an earlier group's largest score was not the last
        for (int64_t t = 0; t < tiling_.padded; t += hn::Lanes(d)) {
          const auto weight = hn::Exp(d, hn::Sub(load(d, scores(s, n) + t), load(d, max + t)));
          store(d, op_.complete ? hn::Div(weight, load(d, sum + t)) : weight, weights(s, n) + t);
        }
      }
      const int64_t at = (s * N_ + n) * T_all + first;
      if (op_.scores_SNT != nullptr) std::copy_n(scores(s, n), tokens, op_.scores_SNT + at);
      std::copy_n(weights(s, n), tokens, op_.weights_SNT + at);
    }
    if (op_.max_ST != nullptr) {
      std::copy_n(max, tokens, op_.max_ST + s * T_all + first);
      std::copy_n(sum, tokens, op_.sum_ST + s * T_all + first);
    }
  }

  const DepthAttentionForward<Storage>& op_;
  const int64_t N_, S_, D_;
  const Tiling tiling_;
  std::vector<T> scores_, weights_;   // [S, N, padded]
  std::vector<T> inverse_rms_;        // [padded], of one source
  std::vector<T> max_, sum_, scale_;  // [S, padded]
  std::vector<T> partial_;            // [S, tokens, D], sums over the groups so far
  std::vector<const Storage*> rows_;  // of a group, at one token
  bool streaming_ = false;
};

// What a source's gradient at one token is made of, of Q sites:
//   dv = sum_q (weight_q do_q + query_q q_q) - value v,  dq_q += query_q v
// with the value of all sites in the rows of the first Q.
template <class Storage>
struct GradientRow {
  const Storage* source;
  Storage* grad;          // null where not wanted
  Compute<Storage>* sum;  // the gradient in the compute type, instead
  bool accumulate, streaming;
  Compute<Storage> weight[kSitesATurn], query[kSitesATurn], value;
};

template <int Q, class Storage, class T>
HWY_INLINE void add_gradients(const std::vector<GradientRow<Storage>>& rows, int64_t num_rows,
                              const std::array<const Storage*, kSitesATurn>& grad_outputs,
                              const T* queries, T* grad_queries, size_t width) {
  const hn::ScalableTag<T> d;
  const size_t lanes = hn::Lanes(d);
  using V = hn::Vec<decltype(d)>;

  const auto step = [&]<int kVectors>(size_t begin, auto part) HWY_ATTR {
    V dh[Q][kVectors], query[Q][kVectors], dq[Q][kVectors];
    for (int u = 0; u < kVectors; ++u) {
      for (int q = 0; q < Q; ++q) {
        const size_t k = begin + u * lanes;
        dh[q][u] = load(d, grad_outputs[q] + k, part);
        query[q][u] = load(d, queries + q * width + k, part);
        dq[q][u] = load(d, grad_queries + q * width + k, part);
      }
    }
    for (int64_t n = 0; n < num_rows; ++n) {
      const GradientRow<Storage>& row = rows[n];
      V dv[kVectors];
      for (int u = 0; u < kVectors; ++u) {
        const V v = load(d, row.source + begin + u * lanes, part);
        dv[u] = hn::Mul(hn::Set(d, -row.value), v);
        for (int q = 0; q < Q; ++q) {
          const V query_part = hn::Set(d, row.query[q]);
          dq[q][u] = hn::MulAdd(query_part, v, dq[q][u]);
          dv[u] = hn::MulAdd(hn::Set(d, row.weight[q]), dh[q][u],
                             hn::MulAdd(query_part, query[q][u], dv[u]));
        }
      }
      const auto give = [&](auto* grad) HWY_ATTR {
        for (int u = 0; u < kVectors; ++u) {
          const size_t k = begin + u * lanes;
          if (row.accumulate) dv[u] = hn::Add(load(d, grad + k, part), dv[u]);
          put(d, dv[u], grad + k, row.streaming, part);
        }
      };
      if (kHasSums<Storage> && row.sum != nullptr) {
        give(row.sum);
      } else if (row.grad != nullptr) {
        give(row.grad);
      }
    }
    for (int u = 0; u < kVectors; ++u) {
      for (int q = 0; q < Q; ++q) {
        store(d, dq[q][u], grad_queries + q * width + begin + u * lanes, part);
      }
    }
  };
  // Whole cache lines of one row after the other, which is what streaming stores need.
  constexpr size_t kLine = 64;
  constexpr int U = sizeof(V) >= kLine ? 1 : 2;
  for_each_vectors<U>(d, width, step);
}

template <class Storage>
class BackwardPass {
 public:
  using T = Compute<Storage>;

  BackwardPass(const DepthAttentionBackward<Storage>& op, T* grad_folded_queries_SD)
      : op_(op),
        grad_queries_(grad_folded_queries_SD),
        N_(op.inputs.num_sources),
        S_(op.inputs.num_sites),
        D_(op.inputs.width),
        tiling_(tiling(op)),
        grad_weights_(S_ * N_ * tiling_.tokens),
        shifts_(S_ * tiling_.tokens),
        weights_(S_ * tiling_.group * tiling_.tokens),
        queries_(weights_.size()),
        values_(tiling_.group * tiling_.tokens),
        rows_(tiling_.group) {
    // Gradients that nobody adds to are done with once written.
    streaming_ = S_ <= kSitesATurn;
    for (int64_t n = 0; n < N_ && streaming_; ++n) {
      streaming_ = worth_streaming(op.grad_sources_N[n], op.inputs.num_tokens, D_) &&
                   worth_streaming(sum_of(n), op.inputs.num_tokens, D_);
    }
  }

  void run(int64_t first, int64_t last) {
    for (int64_t t = first; t < last; t += tiling_.tokens) {
      tile(t, std::min(tiling_.tokens, last - t));
    }
  }

 private:
  void tile(int64_t first, int64_t tokens) {
    const bool shift_known = op_.grad_sum_ST != nullptr;
    if (!shift_known) {
      for (int64_t n = 0; n < N_; ++n) project(n, first, tokens);
    }
    for (int64_t s = 0; s < S_; ++s) shift(s, first, tokens);
    for (int64_t n = 0; n < N_; n += tiling_.group) {
      const int64_t end = std::min(N_, n + tiling_.group);
      for (int64_t i = n; i < end; ++i) {
        if (shift_known) project(i, first, tokens);
        weigh(i, i - n, first, tokens);
      }
      for (int64_t t = 0; t < tokens; ++t) add_group(n, end, first, t);
    }
  }

  // Where c is computed here, every source is projected before the first gradient is written.
  static Tiling tiling(const DepthAttentionBackward<Storage>& op) {
    const int64_t N = op.inputs.num_sources, S = op.inputs.num_sites;
    const int64_t bytes = op.inputs.width * sizeof(Storage),
                  lanes = hn::Lanes(hn::ScalableTag<T>());
    const int64_t tokens = op.inputs.num_tokens;
    return op.grad_sum_ST == nullptr ? Tiling(N, 1, N + S, bytes, lanes, tokens)
                                     : Tiling(N, 2, S, bytes, lanes, tokens);
  }

  T* grad_weights(int64_t s, int64_t n) { return &grad_weights_[(s * N_ + n) * tiling_.tokens]; }
  T* shifts(int64_t s) { return &shifts_[s * tiling_.tokens]; }
  // Where the numbers of a group's i-th source begin.
  int64_t in_group(int64_t s, int64_t i) const { return (s * tiling_.group + i) * tiling_.tokens; }
  int64_t saved(int64_t s, int64_t n, int64_t t) const {
    return (s * N_ + n) * op_.inputs.num_tokens + t;
  }
  T* sum_of(int64_t n) const { return op_.grad_sums_N == nullptr ? nullptr : op_.grad_sums_N[n]; }
  const Storage* grad_output(int64_t s, int64_t t) const { return op_.grad_outputs_S[s] + t * D_; }

  // do_s . v_n at all sites: the gradients of the weights.
  void project(int64_t n, int64_t first, int64_t tokens) {
    for (int64_t begin = 0; begin < S_; begin += kSitesATurn) {
      with_sites(std::min(S_ - begin, kSitesATurn), [&]<int Q>() HWY_ATTR {
        for (int64_t t = 0; t < tokens; ++t) {
          std::array<const Storage*, kSitesATurn> grads = {};
          T* sums[Q];
          for (int q = 0; q < Q; ++q) {
            grads[q] = grad_output(begin + q, first + t);
            sums[q] = grad_weights(begin + q, n) + t;
          }
          const Storage* v = op_.inputs.sources_N[n] + (first + t) * D_;
          dots<Q, false>(v, grads, D_, sums, static_cast<T*>(nullptr));
          if (op_.grad_weights_SNT == nullptr) continue;
          for (int q = 0; q < Q; ++q) {
            *sums[q] += op_.grad_weights_SNT[saved(begin + q, n, first + t)];
          }
        }
      });
    }
  }

  // c, which the softmax takes off every weight's gradient.
  void shift(int64_t s, int64_t first, int64_t tokens) {
    const hn::ScalableTag<T> d;
    const int64_t at = s * op_.inputs.num_tokens + first;
    for_each_vector(d, tokens, [&](size_t t, auto part) HWY_ATTR {
      if (op_.grad_sum_ST != nullptr) {
        return store(d, hn::Neg(load(d, op_.grad_sum_ST + at + t, part)), shifts(s) + t, part);
      }
      auto sum = hn::Zero(d), total = hn::Zero(d);
      if (op_.other_grad_scores_ST != nullptr) {
        sum = load(d, op_.other_grad_scores_ST + at + t, part);
      }
      for (int64_t n = 0; n < N_; ++n) {
        const auto weight = load(d, op_.weights_SNT + saved(s, n, first) + t, part);
        sum = hn::MulAdd(weight, load(d, grad_weights(s, n) + t, part), sum);
        total = hn::Add(total, weight);
      }
      store(d, hn::Div(sum, total), shifts(s) + t, part);
    });
  }

  // What the gradient rows of source n, the i-th of its group, are made of, at all sites.
  void weigh(int64_t n, int64_t i, int64_t first, int64_t tokens) {
    const hn::ScalableTag<T> d;
    const auto over_width = hn::Set(d, T{1} / static_cast<T>(D_));
    for_each_vector(d, tokens, [&](size_t t, auto part) HWY_ATTR {
      const auto inverse_rms = load(d, op_.inverse_rms_N[n] + first + t, part);
      auto value = hn::Zero(d);
      for (int64_t s = 0; s < S_; ++s) {
        const int64_t at = saved(s, n, first) + t, to = in_group(s, i) + t;
        const auto weight = load(d, op_.weights_SNT + at, part);
        const auto grad_weight = load(d, grad_weights(s, n) + t, part);
        const auto grad_score = hn::Mul(weight, hn::Sub(grad_weight, load(d, shifts(s) + t, part)));
        value = hn::MulAdd(grad_score, load(d, op_.scores_SNT + at, part), value);
        store(d, weight, &weights_[to], part);
        store(d, hn::Mul(grad_score, inverse_rms), &queries_[to], part);
      }
      const auto squared = hn::Mul(inverse_rms, inverse_rms);
      store(d, hn::Mul(hn::Mul(value, squared), over_width), &values_[in_group(0, i) + t], part);
    });
  }

  // The gradients of sources [n, end) at one token.
  void add_group(int64_t n, int64_t end, int64_t first, int64_t t) {
    for (int64_t begin = 0; begin < S_; begin += kSitesATurn) {
      with_sites(std::min(S_ - begin, kSitesATurn), [&]<int Q>() HWY_ATTR {
        std::array<const Storage*, kSitesATurn> grads = {};
        for (int q = 0; q < Q; ++q) grads[q] = grad_output(begin + q, first + t);
        for (int64_t i = n; i < end; ++i) {
          Storage* grad = op_.grad_sources_N[i];
          T* sum = sum_of(i);
          GradientRow<Storage>& row = rows_[i - n];
          row.source = op_.inputs.sources_N[i] + (first + t) * D_;
          row.grad = grad == nullptr ? nullptr : grad + (first + t) * D_;
          row.sum = sum == nullptr ? nullptr : sum + (first + t) * D_;
          row.accumulate = begin > 0 || op_.accumulate_N[i];
          row.streaming = streaming_ && !op_.accumulate_N[i];
          row.value = begin == 0 ? values_[in_group(0, i - n) + t] : T{0};
          for (int q = 0; q < Q; ++q) {
            const int64_t at = in_group(begin + q, i - n) + t;
            row.weight[q] = weights_[at];
            row.query[q] = queries_[at];
          }
        }
        add_gradients<Q>(rows_, end - n, grads, op_.inputs.folded_queries_SD + begin * D_,
                         grad_queries_ + begin * D_, D_);
      });
    }
  }

  const DepthAttentionBackward<Storage>& op_;
  T* const grad_queries_;
  const int64_t N_, S_, D_;
  const Tiling tiling_;
  std::vector<T> grad_weights_;             // [S, N, tokens]
  std::vector<T> shifts_;                   // [S, tokens]
  std::vector<T> weights_, queries_;        // [S, group, tokens]
  std::vector<T> values_;                   // [group, tokens], of all sites
  std::vector<GradientRow<Storage>> rows_;  // of a group, at one token
  bool streaming_ = false;
};

template <class Storage>
void pass_over_sources(const DepthAttentionForward<Storage>& op, int64_t first, int64_t last) {
  ForwardPass<Storage>(op, last - first).run(first, last);
}

template <class Storage>
void pass_over_sources_backward(const DepthAttentionBackward<Storage>& op, int64_t first,
                                int64_t last, Compute<Storage>* grad_folded_queries_SD) {
  BackwardPass<Storage>(op, grad_folded_queries_SD).run(first, last);
}

}  // namespace HWY_NAMESPACE
}  // namespace attnres::kernel
HWY_AFTER_NAMESPACE();

#endif  // per target
