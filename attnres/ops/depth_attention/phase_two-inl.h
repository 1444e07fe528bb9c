// Phase 2 at one site, for one instruction set. Tokens are taken in tiles, as in the pass over
// sources.
#if defined(ATTNRES_PHASE_TWO_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNRES_PHASE_TWO_INL_H_
#undef ATTNRES_PHASE_TWO_INL_H_
#else
#define ATTNRES_PHASE_TWO_INL_H_
#endif

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "attnres/ops/depth_attention/dots-inl.h"
#include "attnres/ops/depth_attention/kernel_phase_two.h"
#include "attnres/ops/simd-inl.h"
#include "hwy/contrib/math/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnres::kernel {
namespace HWY_NAMESPACE {

template <class Storage>
int64_t phase_two_tile(int64_t rows, int64_t width, int64_t num_tokens) {
  constexpr int64_t kBytes = 128 << 10, kMostTokens = 64;
  const int64_t most = std::clamp<int64_t>(num_tokens, 1, kMostTokens);
  return std::clamp<int64_t>(kBytes / (rows * width * sizeof(Storage)), 1, most);
}

template <class Storage>
class PhaseTwoForwardPass {
 public:
  using T = Compute<Storage>;

  PhaseTwoForwardPass(const PhaseTwoForward<Storage>& op, int64_t num_tokens)
      : op_(op),
        K_(op.num_recent),
        D_(op.width),
        tile_(phase_two_tile<Storage>(K_ + 4, D_, num_tokens)),
        padded_((tile_ + lanes() - 1) / lanes() * lanes()),
        scores_(K_ * padded_),
        weights_(K_ * padded_),
        inverse_rms_(K_ * padded_),
        max_(padded_),
        sum_(padded_),
        earlier_weight_(padded_),
        h_(D_),
        sources_(K_) {}

  void run(int64_t first, int64_t last) {
    for (int64_t t = first; t < last; t += tile_) tile(t, std::min(tile_, last - t));
  }

 private:
  static int64_t lanes() { return hn::Lanes(hn::ScalableTag<T>()); }

  void tile(int64_t first, int64_t tokens) {
    for (int64_t t = 0; t < tokens; ++t) score(first, t);
    if (op_.earlier_TD != nullptr) {
      std::copy_n(op_.max_T + first, tokens, max_.begin());
      std::copy_n(op_.sum_T + first, tokens, sum_.begin());
    }
    merge();
    for (int64_t t = 0; t < tokens; ++t) {
      op_.gain_D != nullptr ? mix(first + t, t) : mix_without_norm(first + t, t);
    }
    save(first, tokens);
  }

  HWY_NOINLINE void save(int64_t first, int64_t tokens) {
    for (int64_t k = 0; k < K_; ++k) {
      const int64_t from = k * padded_, to = k * op_.num_tokens + first;
      if (op_.scores_KT != nullptr) std::copy_n(&scores_[from], tokens, op_.scores_KT + to);
      if (op_.weights_KT != nullptr) std::copy_n(&weights_[from], tokens, op_.weights_KT + to);
      if (!op_.rms_known_K[k] && op_.inverse_rms_K[k] != nullptr) {
        std::copy_n(&inverse_rms_[from], tokens, op_.inverse_rms_K[k] + first);
      }
    }
    if (op_.earlier_weight_T != nullptr) {
      std::copy_n(earlier_weight_.begin(), tokens, op_.earlier_weight_T + first);
    }
  }

  const Storage* recent(int64_t k, int64_t token) const {
    const bool formed = op_.pending_TD != nullptr && k == K_ - 1;
    return (formed ? op_.sum_TD : op_.recent_K[k]) + token * D_;
  }

  // Forms the sum of one token, and scores its recent sources.
  void score(int64_t first, int64_t t) {
    const hn::ScalableTag<T> d;
    const std::array<const T*, kSitesATurn> query = {op_.folded_query_D};
    const int64_t token = first + t;
    if (op_.pending_TD != nullptr) {
      const Storage *a = op_.partial_TD + token * D_, *b = op_.pending_TD + token * D_;
      Storage* sum = op_.sum_TD + token * D_;
      for_each_vector(d, D_, [&](size_t c, auto part) HWY_ATTR {
        store(d, hn::Add(load(d, a + c, part), load(d, b + c, part)), sum + c, part);
      });
    }
    for (int64_t k = 0; k < K_; ++k) {
      T dot, square;
      T* const sums[] = {&dot};
      dots<1, true>(recent(k, token), query, D_, sums, &square);
      const int64_t at = k * padded_ + t;
      inverse_rms_[at] =
          op_.rms_known_K[k]
              ? op_.inverse_rms_K[k][token]
              : T{1} / std::sqrt(square / static_cast<T>(D_) + static_cast<T>(op_.eps));
      scores_[at] = dot * inverse_rms_[at];
    }
  }

  // The weights of a tile, by online softmax over phase 1 and the recent sources.
  void merge() {
    const hn::ScalableTag<T> d;
    for (int64_t t = 0; t < padded_; t += lanes()) {
      const bool earlier = op_.earlier_TD != nullptr;
      auto m = load(d, earlier ? &max_[t] : &scores_[t]);
      for (int64_t k = 0; k < K_; ++k) m = hn::Max(m, load(d, &scores_[k * padded_ + t]));
      const auto scale = earlier ? hn::Exp(d, hn::Sub(load(d, &max_[t]), m)) : hn::Zero(d);
      auto ell = hn::Mul(scale, load(d, &sum_[t]));
      for (int64_t k = 0; k < K_; ++k) {
        const auto weight = hn::Exp(d, hn::Sub(load(d, &scores_[k * padded_ + t]), m));
        ell = hn::Add(ell, weight);
        store(d, weight, &weights_[k * padded_ + t]);
      }
      store(d, hn::Div(scale, ell), &earlier_weight_[t]);
      for (int64_t k = 0; k < K_; ++k) {
        T* weight = &weights_[k * padded_ + t];
        store(d, hn::Div(load(d, weight), ell), weight);
      }
    }
  }

  // Calls take(c, h, Whole or Part) with the channels of h from c on, of one token.
  template <class Take>
  HWY_INLINE void for_each_of_h(int64_t token, int64_t t, const Take& take) {
    const hn::ScalableTag<T> d;
    for (int64_t k = 0; k < K_; ++k) sources_[k] = {recent(k, token), weights_[k * padded_ + t]};
    const Source* begin = sources_.data();
    const Source* end = begin + K_;
    const Storage* earlier = op_.earlier_TD == nullptr ? nullptr : op_.earlier_TD + token * D_;
    const auto earlier_weight = hn::Set(d, earlier_weight_[t]);
    for_each_vector(d, D_, [&](size_t c, auto part) HWY_ATTR {
      auto h =
          earlier == nullptr ? hn::Zero(d) : hn::Mul(earlier_weight, load(d, earlier + c, part));
      for (const Source* source = begin; source != end; ++source) {
        h = hn::MulAdd(hn::Set(d, source->weight), load(d, source->row + c, part), h);
      }
      take(c, h, part);
    });
  }

  // x of one token: h, normalised.
  void mix(int64_t token, int64_t t) {
    const hn::ScalableTag<T> d;
    T* const h_D = h_.data();
    auto square = hn::Zero(d);
    for_each_of_h(token, t, [&](size_t c, auto h, auto part) HWY_ATTR {
      square = hn::MulAdd(h, h, square);
      store(d, h, h_D + c, part);
    });
    const T mean = hn::GetLane(hn::SumOfLanes(d, square)) / static_cast<T>(D_);
    const T rho = T{1} / std::sqrt(mean + static_cast<T>(op_.norm_eps));
    if (op_.rho_T != nullptr) op_.rho_T[token] = rho;
    const auto scale = hn::Set(d, rho);
    const T* gain = op_.gain_D;
    Storage* x = op_.x_TD + token * D_;
    Storage* normalized = op_.normalized_TD == nullptr ? nullptr : op_.normalized_TD + token * D_;
    for_each_vector(d, D_, [&](size_t c, auto part) HWY_ATTR {
      const auto n = hn::Mul(load(d, h_D + c, part), scale);
      if (normalized != nullptr) store(d, n, normalized + c, part);
      store(d, hn::Mul(load(d, gain + c, part), n), x + c, part);
    });
  }

  void mix_without_norm(int64_t token, int64_t t) {
    const hn::ScalableTag<T> d;
    Storage* x = op_.x_TD + token * D_;
    for_each_of_h(token, t,
                  [&](size_t c, auto h, auto part) HWY_ATTR { store(d, h, x + c, part); });
  }

  struct Source {
    const Storage* row;
    T weight;
  };

  const PhaseTwoForward<Storage>& op_;
  const int64_t K_, D_, tile_, padded_;
  std::vector<T> scores_, weights_, inverse_rms_;  // [K, padded]
  std::vector<T> max_, sum_, earlier_weight_;      // [padded]
  std::vector<T> h_;                               // [D], of one token
  std::vector<Source> sources_;                    // the recent ones, of one token
};

// With a = dx . x, u = gain * dx and n = h rho:
//   dh = rho (u - n a / D),  c = norm_eps rho^2 a
//   ds_k = w_k (dh . v_k - c),  do = kappa dh,  dell = -kappa c
//   dv_k = w_k dh + ds_k r_k q - ds_k s_k r_k^2 v_k / D,  dq = sum ds_k r_k v_k,  dgain = dx * n
// Without a norm dh = dx and c = a. Without phase 1, c = sum_k w_k (dh . v_k): the same, but for
// what the rounding of x and dx makes of it.
template <class Storage>
class PhaseTwoBackwardPass {
 public:
  using T = Compute<Storage>;

  PhaseTwoBackwardPass(const PhaseTwoBackward<Storage>& op, T* sums)
      : op_(op),
        grad_query_(sums),
        grad_gain_(sums + op.width),
        K_(op.num_recent),
        D_(op.width),
        tile_(phase_two_tile<Storage>(2 * K_ + 4, D_, op.num_tokens)),
        along_(tile_),
        grad_weights_(K_ * tile_),
        recent_(K_) {
    streaming_ =
        op.grad_earlier_TD != nullptr && worth_streaming(op.grad_earlier_TD, op.num_tokens, D_);
  }

  void run(int64_t first, int64_t last) {
    for (int64_t begin = first; begin < last; begin += tile_) {
      const int64_t end = std::min(last, begin + tile_);
      for (int64_t token = begin; token < end; ++token) {
        has_norm() ? project(token, token - begin) : project_without_norm(token, token - begin);
      }
      for (int64_t token = begin; token < end; ++token) add_gradients(token, token - begin);
    }
  }

 private:
  bool has_norm() const { return op_.gain_D != nullptr; }

  // a, and dh . v_k.
  void project(int64_t token, int64_t t) {
    const hn::ScalableTag<T> d;
    const Storage *dx = op_.grad_x_TD + token * D_, *kept = op_.kept_TD + token * D_;
    auto along = hn::Zero(d);
    for_each_vector(d, D_, [&](size_t c, auto part) HWY_ATTR {
      const auto u = hn::Mul(load(d, dx + c, part), load(d, op_.gain_D + c, part));
      const auto n = hn::Mul(load(d, kept + c, part), load(d, op_.kept_factor_D + c, part));
      along = hn::MulAdd(u, n, along);
    });
    along_[t] = hn::GetLane(hn::SumOfLanes(d, along));
    for (int64_t k = 0; k < K_; ++k) {
      const Storage* v = op_.recent_K[k] + token * D_;
      auto uv = hn::Zero(d), nv = hn::Zero(d);
      for_each_vector(d, D_, [&](size_t c, auto part) HWY_ATTR {
        const auto x = load(d, v + c, part);
        const auto u = hn::Mul(load(d, dx + c, part), load(d, op_.gain_D + c, part));
        const auto n = hn::Mul(load(d, kept + c, part), load(d, op_.kept_factor_D + c, part));
        uv = hn::MulAdd(u, x, uv);
        nv = hn::MulAdd(n, x, nv);
      });
      grad_weights_[k * tile_ + t] =
          op_.rho_T[token] * (hn::GetLane(hn::SumOfLanes(d, uv)) -
                              along_[t] / static_cast<T>(D_) * hn::GetLane(hn::SumOfLanes(d, nv)));
    }
  }

  void project_without_norm(int64_t token, int64_t t) {
    const hn::ScalableTag<T> d;
    const auto along_gradient = [&](const Storage* rows) HWY_ATTR {
      const Storage *dx = op_.grad_x_TD + token * D_, *row = rows + token * D_;
      auto dot = hn::Zero(d);
      for_each_vector(d, D_, [&](size_t c, auto part) HWY_ATTR {
        dot = hn::MulAdd(load(d, dx + c, part), load(d, row + c, part), dot);
      });
      return hn::GetLane(hn::SumOfLanes(d, dot));
    };
    along_[t] = along_gradient(op_.kept_TD);
    for (int64_t k = 0; k < K_; ++k) {
      grad_weights_[k * tile_ + t] = along_gradient(op_.recent_K[k]);
    }
  }

  // c at one token.
  T shift(int64_t token, int64_t t) const {
    if (op_.grad_earlier_TD == nullptr && K_ > 0) {
      T sum = 0;
      for (int64_t k = 0; k < K_; ++k) {
        sum += op_.weights_KT[k * op_.num_tokens + token] * grad_weights_[k * tile_ + t];
      }
      return sum;
    }
    if (!has_norm()) return along_[t];
    return static_cast<T>(op_.norm_eps) * op_.rho_T[token] * op_.rho_T[token] * along_[t];
  }

  struct Recent {
    const Storage* source;
    const Storage* arriving;  // a gradient to be added, or null
    Storage* grad;            // null where not wanted
    T* sum;                   // the gradient in the compute type, instead
    bool accumulate;          // to the sum
    T weight, query, value;
  };

  void add_gradients(int64_t token, int64_t t) {
    const hn::ScalableTag<T> d;
    const T rho = has_norm() ? op_.rho_T[token] : T{1};
    const T shift = this->shift(token, t);
    T grad_scores = 0;
    for (int64_t k = 0; k < K_; ++k) {
      const int64_t at = k * op_.num_tokens + token;
      const T weight = op_.weights_KT[at], inverse_rms = op_.inverse_rms_K[k][token];
      const T grad_score = weight * (grad_weights_[k * tile_ + t] - shift);
      grad_scores += grad_score;
      Storage* grad = op_.grad_recent_K[k];
      if (grad != nullptr) grad += token * D_;
      T* sum = op_.grad_sums_K == nullptr ? nullptr : op_.grad_sums_K[k];
      if (sum != nullptr) sum += token * D_;
      const bool last = k == K_ - 1;
      const Storage* arriving = op_.accumulate_K[k]                  ? grad
                                : last && op_.grad_sum_TD != nullptr ? op_.grad_sum_TD + token * D_
                                                                     : nullptr;
      recent_[k] = {
          op_.recent_K[k] + token * D_,
          arriving,
          grad,
          sum,
          op_.accumulate_K[k],
          weight,
          grad_score * inverse_rms,
          grad_score * op_.scores_KT[at] * inverse_rms * inverse_rms / static_cast<T>(D_)};
    }
    if (op_.grad_earlier_TD != nullptr) {
      op_.grad_sum_T[token] = -op_.earlier_weight_T[token] * shift;
      if (op_.grad_scores_T != nullptr) op_.grad_scores_T[token] = grad_scores;
    }

    const Storage* dx = op_.grad_x_TD + token * D_;
    if (!has_norm()) {
      return spread(token, [&](size_t c, auto part) HWY_ATTR { return load(d, dx + c, part); });
    }
    const Storage* kept = op_.kept_TD + token * D_;
    const auto along = hn::Set(d, along_[t] / static_cast<T>(D_)), scale = hn::Set(d, rho);
    spread(token, [&](size_t c, auto part) HWY_ATTR {
      const auto grad_x = load(d, dx + c, part);
      const auto n = hn::Mul(load(d, kept + c, part), load(d, op_.kept_factor_D + c, part));
      const auto u = hn::Mul(grad_x, load(d, op_.gain_D + c, part));
      store(d, hn::MulAdd(grad_x, n, load(d, grad_gain_ + c, part)), grad_gain_ + c, part);
      return hn::Mul(scale, hn::NegMulAdd(n, along, u));
    });
  }

  // The gradients of o, the recent sources and the query, from dh_at(c, Whole or Part), the
  // channels of dh from c on.
  template <class DhAt>
  HWY_INLINE void spread(int64_t token, const DhAt& dh_at) {
    const hn::ScalableTag<T> d;
    const T earlier_weight = op_.grad_earlier_TD != nullptr ? op_.earlier_weight_T[token] : T{0};
    for_each_vector(d, D_, [&](size_t c, auto part) HWY_ATTR {
      const auto dh = dh_at(c, part);
      if (op_.grad_earlier_TD != nullptr) {
        put(d, hn::Mul(hn::Set(d, earlier_weight), dh), op_.grad_earlier_TD + token * D_ + c,
            streaming_, part);
      }
      if (K_ == 0) return;
      const auto query = load(d, op_.folded_query_D + c, part);
      auto dq = load(d, grad_query_ + c, part);
      for (int64_t k = 0; k < K_; ++k) {
        const Recent& recent = recent_[k];
        const auto v = load(d, recent.source + c, part);
        const auto query_part = hn::Set(d, recent.query);
        dq = hn::MulAdd(query_part, v, dq);
        const bool sums = kHasSums<Storage> && recent.sum != nullptr;
        if (recent.grad == nullptr && !sums) continue;
        auto dv = recent.arriving == nullptr ? hn::Zero(d) : load(d, recent.arriving + c, part);
        if (sums && recent.accumulate) dv = load(d, recent.sum + c, part);
        dv = hn::MulAdd(hn::Set(d, recent.weight), dh, dv);
        dv = hn::MulAdd(query_part, query, dv);
        dv = hn::NegMulAdd(hn::Set(d, recent.value), v, dv);
        sums ? store(d, dv, recent.sum + c, part) : store(d, dv, recent.grad + c, part);
      }
      store(d, dq, grad_query_ + c, part);
    });
  }

  const PhaseTwoBackward<Storage>& op_;
  T *const grad_query_, *const grad_gain_;
  const int64_t K_, D_, tile_;
  std::vector<T> along_;         // [tile]: a
  std::vector<T> grad_weights_;  // [K, tile]: dh . v_k
  std::vector<Recent> recent_;   // at one token
  bool streaming_ = false;
};

template <class Storage>
void phase_two_forward_pass(const PhaseTwoForward<Storage>& op, int64_t first, int64_t last) {
  PhaseTwoForwardPass<Storage>(op, last - first).run(first, last);
}

template <class Storage>
void phase_two_backward_pass(const PhaseTwoBackward<Storage>& op, int64_t first, int64_t last,
                             Compute<Storage>* sums) {
  PhaseTwoBackwardPass<Storage>(op, sums).run(first, last);
}

}  // namespace HWY_NAMESPACE
}  // namespace attnres::kernel
HWY_AFTER_NAMESPACE();

#endif  // per target
