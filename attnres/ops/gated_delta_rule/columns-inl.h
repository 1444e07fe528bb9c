// The gated delta rule on columns of a state, for one instruction set.
#if defined(ATTNRES_GATED_DELTA_RULE_COLUMNS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNRES_GATED_DELTA_RULE_COLUMNS_INL_H_
#undef ATTNRES_GATED_DELTA_RULE_COLUMNS_INL_H_
#else
#define ATTNRES_GATED_DELTA_RULE_COLUMNS_INL_H_
#endif

#include <vector>

#include "attnres/ops/gated_delta_rule/kernel.h"
#include "attnres/ops/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnres::kernel {
namespace HWY_NAMESPACE {

// Some columns of a head's state, as many as registers sum at once: held in one dense array where
// there are tokens enough to pay for that, else where they are.
template <class Storage>
class DeltaRuleColumns {
 public:
  using T = Compute<Storage>;

  explicit DeltaRuleColumns(const GatedDeltaRule<Storage>& op) : op_(op) {}

  static int64_t most() { return kVectors * lanes(); }

  // Columns [first, first + count) of a head of B H, through all tokens; count is most() at most.
  void run(int64_t head, int64_t first, int64_t count) {
    const int64_t H = op_.heads, batch = head / H;
    const T* from = op_.state + head * op_.key_width * op_.value_width + first;
    T* to = op_.new_state + head * op_.key_width * op_.value_width + first;
    const bool in_place = from == to && count == most() && op_.tokens < kTokensWorthACopy;
    if (!in_place) state_.resize(op_.key_width * most());
    rows_ = in_place ? to : state_.data();
    stride_ = in_place ? op_.value_width : most();
    for (int64_t i = 0; !in_place && i < op_.key_width; ++i) {
      for_some(
          [&](int u, auto part) HWY_ATTR {
            store(d_, load(d_, from + i * op_.value_width + u * lanes(), part),
                  row(i) + u * lanes());
          },
          count);
    }
    for (int64_t t = 0; t < op_.tokens; ++t) {
      token((batch * op_.tokens + t) * H + head % H, first, count);
    }
    for (int64_t i = 0; !in_place && i < op_.key_width; ++i) {
      for_some(
          [&](int u, auto part) HWY_ATTR {
            store(d_, load(d_, row(i) + u * lanes()), to + i * op_.value_width + u * lanes(), part);
          },
          count);
    }
  }

 private:
  static constexpr int kVectors = 4;
  static constexpr int64_t kTokensWorthACopy = 4;
  using D = hn::ScalableTag<T>;
  using Vector = hn::Vec<D>;

  static int64_t lanes() { return hn::Lanes(D()); }
  T* row(int64_t i) { return rows_ + i * stride_; }

  // Calls f(u, Whole or Part) for each vector that has any of `count` columns.
  template <class F>
  HWY_INLINE void for_some(const F& f, int64_t count) {
    for (int u = 0; u < kVectors && u * lanes() < count; ++u) {
      const int64_t rest = count - u * lanes();
      rest >= lanes() ? f(u, Whole{}) : f(u, Part{static_cast<size_t>(rest)});
    }
  }

  void token(int64_t at, int64_t first, int64_t count) {
    const int64_t K = op_.key_width;
    const T *q = op_.q + at * K, *k = op_.k + at * K, *decay = op_.decay + at * K;
    // A copy of its own: a store might change a member, for all that the compiler knows.
    T* const rows = rows_;
    const int64_t stride = stride_;
    // k^T diag(a) S, of even and of odd rows: a sum waits for the one before it.
    Vector even[kVectors], odd[kVectors];
    for (int u = 0; u < kVectors; ++u) even[u] = odd[u] = hn::Zero(d_);
    const auto recall = [&](int64_t i, Vector* sum) HWY_ATTR {
      const auto decayed_key = hn::Set(d_, k[i] * decay[i]);
      for (int u = 0; u < kVectors; ++u) {
        sum[u] = hn::MulAdd(decayed_key, load(d_, rows + i * stride + u * lanes()), sum[u]);
      }
    };
    int64_t i = 0;
    for (; i + 2 <= K; i += 2) {
      recall(i, even);
      recall(i + 1, odd);
    }
    if (i < K) recall(i, even);

    Vector correction[kVectors], o[kVectors];
    for (int u = 0; u < kVectors; ++u) correction[u] = o[u] = hn::Zero(d_);
    const Storage* v = op_.v + at * op_.value_width + first;
    for_some(
        [&](int u, auto part) HWY_ATTR {
          const auto recalled = hn::Add(even[u], odd[u]);
          const auto lacking = hn::Sub(load(d_, v + u * lanes(), part), recalled);
          correction[u] = hn::Mul(hn::Set(d_, op_.beta[at]), lacking);
        },
        count);
    for (i = 0; i < K; ++i) {
      const auto a = hn::Set(d_, decay[i]), key = hn::Set(d_, k[i]), query = hn::Set(d_, q[i]);
      for (int u = 0; u < kVectors; ++u) {
        T* state = rows + i * stride + u * lanes();
        const auto S = hn::MulAdd(key, correction[u], hn::Mul(a, load(d_, state)));
        store(d_, S, state);
        o[u] = hn::MulAdd(query, S, o[u]);
      }
    }
    Storage* to = op_.o + at * op_.value_width + first;
    for_some([&](int u, auto part) HWY_ATTR { store(d_, o[u], to + u * lanes(), part); }, count);
  }

  const GatedDeltaRule<Storage>& op_;
  const D d_;
  std::vector<T> state_;  // [K, most()], zeros beyond the count
  T* rows_ = nullptr;     // the first of K, of what is worked on
  int64_t stride_ = 0;
};

}  // namespace HWY_NAMESPACE
}  // namespace attnres::kernel
HWY_AFTER_NAMESPACE();

#endif  // per target
