#include <algorithm>
#include <cmath>
#include <vector>

#include "attnres/ops/delta_attention/kernel.h"
#include "attnres/ops/exported_kernel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attnres/ops/delta_attention/kernel_simd.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "attnres/ops/gated_delta_rule/columns-inl.h"
#include "attnres/ops/sigmoid-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace attnres::kernel {
namespace HWY_NAMESPACE {

// One head after another, some tokens at a time, which stay in the core's cache.
template <class Storage>
class DeltaAttentionHead {
 public:
  using T = Compute<Storage>;

  explicit DeltaAttentionHead(const DeltaAttention<Storage>& op)
      : op_(op),
        most_(std::min(op.tokens, kTokens)),
        taps_(op.conv_width * op.width),
        beta_(most_),
        decay_(most_ * op.width),
        o_(most_ * op.width) {
    for (int i = 0; i < 3; ++i) {
      window_[i].resize((op.conv_width - 1 + most_) * op.width);
      heads_[i].resize(most_ * op.width);
    }
  }

  void run(int64_t sequence, int64_t head) {
    const int64_t K = op_.width, before = op_.conv_width - 1, channel = head * K;
    for (int i = 0; i < 3; ++i) {
      const Storage* kept = op_.conv_inputs[i][sequence] + channel;
      for (int64_t w = 0; w < before; ++w) copy(kept + w * op_.heads * K, &window_[i][w * K]);
    }
    T* state = op_.states[sequence] + head * K * K;
    for (int64_t done = 0; done < op_.tokens; done += most_) {
      const int64_t count = std::min(most_, op_.tokens - done);
      const int64_t row = sequence * op_.tokens + done;
      for (int i = 0; i < 3; ++i) convolve(i, row, count, channel);
      normalize(heads_[0], count, 1 / std::sqrt(static_cast<T>(K)));
      normalize(heads_[1], count, 1);
      for (int64_t t = 0; t < count; ++t) {
        decays(op_.decay.row(row + t) + channel, head, &decay_[t * K]);
        beta_[t] = sigmoid_of(op_.beta.row(row + t) + head);
      }
      apply_rule(state, count);
      for (int64_t t = 0; t < count; ++t) {
        norm_and_gate(&o_[t * K], op_.gate.row(row + t) + channel,
                      op_.y + (row + t) * op_.heads * K + channel);
      }
      for (int i = 0; i < 3; ++i) {
        std::copy_n(window_[i].data() + count * K, before * K, window_[i].data());
      }
    }
    for (int i = 0; i < 3; ++i) {
      Storage* kept = op_.conv_inputs[i][sequence] + channel;
      for (int64_t w = 0; w < before; ++w) copy(&window_[i][w * K], kept + w * op_.heads * K);
    }
  }

 private:
  static constexpr int64_t kTokens = 32;
  using D = hn::ScalableTag<T>;

  // A head's channels, from one type to another.
  template <class From, class To>
  void copy(const From* from, To* to) {
    for_each_vector(d_, op_.width, [&](size_t k, auto part) HWY_ATTR {
      store(d_, load(d_, from + k, part), to + k, part);
    });
  }

  T sum_of_squares(const T* x) {
    auto squares = hn::Zero(d_);
    for_each_vector(d_, op_.width, [&](size_t k, auto part) HWY_ATTR {
      const auto number = load(d_, x + k, part);
      squares = hn::MulAdd(number, number, squares);
    });
    return hn::GetLane(hn::SumOfLanes(d_, squares));
  }

  T sigmoid_of(const Storage* x) { return hn::GetLane(sigmoid(d_, load(d_, x, Part{1}))); }

  // And silu.
  void convolve(int which, int64_t row, int64_t count, int64_t channel) {
    const int64_t K = op_.width, W = op_.conv_width;
    const T* kernel = op_.conv_PW[which] + channel * W;
    for (int64_t w = 0; w < W; ++w) {
      for (int64_t k = 0; k < K; ++k) taps_[w * K + k] = kernel[k * W + w];
    }
    std::vector<T>& window = window_[which];
    for (int64_t t = 0; t < count; ++t) {
      copy(op_.inputs[which].row(row + t) + channel, &window[(W - 1 + t) * K]);
      for_each_vector(d_, K, [&](size_t k, auto part) HWY_ATTR {
        auto sum = hn::Zero(d_);
        for (int64_t w = 0; w < W; ++w) {
          sum = hn::MulAdd(load(d_, &taps_[w * K + k], part),
                           load(d_, &window[(t + w) * K + k], part), sum);
        }
        store(d_, hn::Mul(sum, sigmoid(d_, sum)), &heads_[which][t * K + k], part);
      });
    }
  }

  // Each token's channels, to the length `scale`.
  void normalize(std::vector<T>& rows, int64_t count, T scale) {
    const int64_t K = op_.width;
    for (int64_t t = 0; t < count; ++t) {
      T* x = &rows[t * K];
      const auto factor =
          hn::Set(d_, scale / std::sqrt(sum_of_squares(x) + static_cast<T>(kHeadNormEps)));
      for_each_vector(d_, K, [&](size_t k, auto part) HWY_ATTR {
        store(d_, hn::Mul(load(d_, x + k, part), factor), x + k, part);
      });
    }
  }

  void decays(const Storage* step, int64_t head, T* to) {
    const auto rate = hn::Set(d_, std::exp(op_.A_log_H[head]));
    const auto bound = hn::Set(d_, op_.decay_bound);
    const T* bias = op_.dt_bias_P + head * op_.width;
    for_each_vector(d_, op_.width, [&](size_t k, auto part) HWY_ATTR {
      const auto z = hn::Add(load(d_, step + k, part), load(d_, bias + k, part));
      const auto logarithm = op_.decay_bound < 0 ? hn::Mul(bound, sigmoid(d_, hn::Mul(rate, z)))
                                                 : hn::Neg(hn::Mul(rate, softplus(d_, z)));
      store(d_, hn::Exp(d_, logarithm), to + k, part);
    });
  }

  void apply_rule(T* state, int64_t count) {
    const int64_t K = op_.width;
    const GatedDeltaRule<T> rule{.tokens = count,
                                 .heads = 1,
                                 .key_width = K,
                                 .value_width = K,
                                 .q = heads_[0].data(),
                                 .k = heads_[1].data(),
                                 .decay = decay_.data(),
                                 .v = heads_[2].data(),
                                 .beta = beta_.data(),
                                 .state = state,
                                 .o = o_.data(),
                                 .new_state = state};
    DeltaRuleColumns<T> columns(rule);
    const int64_t most = columns.most();
    for (int64_t first = 0; first < K; first += most) {
      columns.run(/*head=*/0, first, std::min(most, K - first));
    }
  }

  // RMSNorm(o) * gain * sigmoid(gate)
  void norm_and_gate(const T* o, const Storage* gate, Storage* y) {
    const T mean = sum_of_squares(o) / static_cast<T>(op_.width);
    const auto factor = hn::Set(d_, 1 / std::sqrt(mean + op_.norm_eps));
    for_each_vector(d_, op_.width, [&](size_t k, auto part) HWY_ATTR {
      const auto normalized = hn::Mul(load(d_, o + k, part), factor);
      const auto gained = hn::Mul(normalized, load(d_, op_.gain_K + k, part));
      store(d_, hn::Mul(gained, sigmoid(d_, load(d_, gate + k, part))), y + k, part);
    });
  }

  static constexpr double kHeadNormEps = 1e-6;

  const DeltaAttention<Storage>& op_;
  const D d_;
  int64_t most_;              // tokens at once
  std::vector<T> taps_;       // [W, K]
  std::vector<T> window_[3];  // [W - 1 + most, K]: inputs of queries, keys and values
  std::vector<T> heads_[3];   // [most, K]: queries, keys and values
  std::vector<T> beta_, decay_, o_;
};

template <class Storage>
void delta_attention_heads(const DeltaAttention<Storage>& op, int64_t first, int64_t last) {
  DeltaAttentionHead<Storage> head(op);
  for (int64_t i = first; i < last; ++i) head.run(i / op.heads, i % op.heads);
}

ATTNRES_COMPILE(delta_attention, DeltaAttention, delta_attention_heads)

}  // namespace HWY_NAMESPACE
}  // namespace attnres::kernel
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnres::kernel {

ATTNRES_EXPORT(delta_attention, DeltaAttention)

}  // namespace attnres::kernel
#endif  // HWY_ONCE
