// The bytes that the kernels move between memory and a core, counted: the kernels' own templates
// run on a storage type whose loads and stores go through a model of the core's cache. Plain
// counting of loads would count a row again that the kernel finds in the cache. Tensors of [T, D]
// are counted; a token's statistics (a few numbers a source), queries, gains and the kernels'
// scratch memory are not.
//
// One instruction set is enough, the one that everything is compiled for: which rows are read when
// does not depend on it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <unordered_map>
#include <vector>

#include "attnres/ops/depth_attention/pass_over_sources-inl.h"
#include "attnres/ops/depth_attention/phase_two-inl.h"
#include "attnres/ops/rms_norm/rms_norm-inl.h"
#include "hwy/highway.h"

namespace attnres::bench {

// In bytes, or in tensors of [T, D].
struct Traffic {
  double read = 0;
  double written = 0;
  double fetched = 0;  // what an ordinary store brings in before it overwrites it

  Traffic& operator+=(const Traffic& other) {
    read += other.read;
    written += other.written;
    fetched += other.fetched;
    return *this;
  }
  friend Traffic operator/(const Traffic& all, double parts) {
    return {all.read / parts, all.written / parts, all.fetched / parts};
  }
  bool operator==(const Traffic&) const = default;
};

// One core's own cache: lines of 64 bytes, the least recently used one is evicted, and written back
// if it was stored to.
class CacheModel {
 public:
  explicit CacheModel(size_t bytes) : slots_(bytes / kLine) { clear(); }

  void load(const void* from, size_t bytes) {
    for_lines(from, bytes, [&](uintptr_t line) {
      if (!find(line)) traffic_.read += kLine;
    });
  }
  void store(const void* to, size_t bytes) {
    for_lines(to, bytes, [&](uintptr_t line) {
      if (!find(line)) traffic_.fetched += kLine;
      slots_[newest_].dirty = true;
    });
  }
  // Past the cache. Stores that fill a line together go to memory as one.
  void stream(const void* to, size_t bytes) {
    traffic_.written += static_cast<double>(bytes);
    for_lines(to, bytes, [&](uintptr_t line) {
      if (const auto at = slot_of_.find(line); at != slot_of_.end()) {
        slots_[at->second].dirty = false;
      }
    });
  }

  // What passed so far, with what is still to be written back. The cache is empty afterwards.
  Traffic finish() {
    for (const Slot& slot : slots_) write_back(slot);
    const Traffic all = traffic_;
    clear();
    return all;
  }

 private:
  static constexpr uintptr_t kLine = 64, kNone = std::numeric_limits<uintptr_t>::max();

  // A ring in the order of use.
  struct Slot {
    uintptr_t line = kNone;
    bool dirty = false;
    size_t older = 0, newer = 0;
  };

  void clear() {
    slot_of_.clear();
    const size_t count = slots_.size();
    for (size_t i = 0; i < count; ++i) {
      slots_[i] = {.older = (i + count - 1) % count, .newer = (i + 1) % count};
    }
    newest_ = count - 1;
    traffic_ = {};
  }

  template <class F>
  static void for_lines(const void* begin, size_t bytes, const F& f) {
    const auto first = reinterpret_cast<uintptr_t>(begin);
    for (uintptr_t line = first / kLine; line <= (first + bytes - 1) / kLine; ++line) f(line);
  }

  void write_back(const Slot& slot) {
    if (slot.dirty) traffic_.written += kLine;
  }

  // Makes the line the newest, evicting the oldest if it was not there; returns whether it was.
  bool find(uintptr_t line) {
    if (slots_[newest_].line == line) return true;
    const auto at = slot_of_.find(line);
    if (at != slot_of_.end()) {
      move_to_newest(at->second);
      return true;
    }
    const size_t oldest = slots_[newest_].newer;
    write_back(slots_[oldest]);
    slot_of_.erase(slots_[oldest].line);
    slots_[oldest].line = line;
    slots_[oldest].dirty = false;
    slot_of_[line] = oldest;
    newest_ = oldest;
    return false;
  }

  void move_to_newest(size_t i) {
    if (slots_[newest_].newer != i) {
      Slot& slot = slots_[i];
      slots_[slot.older].newer = slot.newer;
      slots_[slot.newer].older = slot.older;
      slot.older = newest_;
      slot.newer = slots_[newest_].newer;
      slots_[slot.newer].older = i;
      slots_[newest_].newer = i;
    }
    newest_ = i;
  }

  std::vector<Slot> slots_;
  std::unordered_map<uintptr_t, size_t> slot_of_;
  size_t newest_ = 0;
  Traffic traffic_;
};

// Through which Counted goes.
inline CacheModel* counting_cache = nullptr;

}  // namespace attnres::bench

HWY_BEFORE_NAMESPACE();
namespace attnres::kernel {
namespace HWY_NAMESPACE {

// A float32 whose loads and stores are counted.
struct Counted {
  float value;
};

template <class D>
HWY_INLINE hn::Vec<D> load(D d, const Counted* from, Whole) {
  bench::counting_cache->load(from, hn::Lanes(d) * sizeof(Counted));
  return hn::LoadU(d, &from->value);
}

template <class D>
HWY_INLINE hn::Vec<D> load(D d, const Counted* from, Part part) {
  bench::counting_cache->load(from, part.count * sizeof(Counted));
  return load(d, &from->value, part);
}

template <class D>
HWY_INLINE void store(D d, hn::Vec<D> v, Counted* to, Whole) {
  bench::counting_cache->store(to, hn::Lanes(d) * sizeof(Counted));
  hn::StoreU(v, d, &to->value);
}

template <class D>
HWY_INLINE void store(D d, hn::Vec<D> v, Counted* to, Part part) {
  bench::counting_cache->store(to, part.count * sizeof(Counted));
  store(d, v, &to->value, part);
}

template <class D>
HWY_INLINE void put(D d, hn::Vec<D> v, Counted* to, bool streaming, Whole whole) {
  if (!streaming) return store(d, v, to, whole);
  bench::counting_cache->stream(to, hn::Lanes(d) * sizeof(Counted));
  hn::StoreU(v, d, &to->value);
}

}  // namespace HWY_NAMESPACE

template <>
struct ComputeType<HWY_NAMESPACE::Counted> {
  using Type = float;
};

}  // namespace attnres::kernel
HWY_AFTER_NAMESPACE();

namespace attnres::bench {

namespace kernels = kernel::HWY_NAMESPACE;
using kernels::Counted;

// Phase 2 at a site: which tensors it has.
struct SiteTensors {
  int64_t finished = 0;  // recent sources that are finished
  bool earlier = true;   // o of phase 1
  bool partial = false;  // a partial sum is read,
  bool pending = false;  // an output is: the two are added if both
  int64_t recent() const { return finished + (partial || pending ? 1 : 0); }
};

// Runs kernels on a core's share of a model's tokens, each from an empty cache, and says what they
// moved, in tensors of [share, width].
class TrafficCounter {
 public:
  // Tensors are on cache lines. Those of `all_tokens` decide whether streaming pays.
  TrafficCounter(int64_t all_tokens, int64_t share, int64_t width, size_t cache_bytes)
      : all_(all_tokens), share_(share), width_(width), cache_(cache_bytes) {}

  // Runs f() and counts.
  template <class F>
  Traffic count(const F& f) {
    counting_cache = &cache_;
    f();
    return cache_.finish() / static_cast<double>(share_ * width_ * sizeof(Counted));
  }

  Traffic phase_one_forward(int64_t num_sources, int64_t num_sites) {
    const auto sources = tensors(num_sources), outputs = tensors(num_sites);
    const auto inverse_rms = statistics(num_sources);
    const std::unique_ptr<bool[]> known(new bool[num_sources]());
    const kernel::DepthAttentionForward<Counted> op{
        .inputs = inputs(sources, num_sites),
        .eps = kEps,
        .complete = false,
        .inverse_rms_N = inverse_rms.data(),
        .rms_known_N = known.get(),
        .outputs_S = outputs.data(),
        .max_ST = statistic(num_sites),
        .sum_ST = statistic(num_sites),
        .scores_SNT = statistic(num_sites * num_sources),
        .weights_SNT = statistic(num_sites * num_sources)};
    return count([&] { kernels::ForwardPass<Counted>(op, share_).run(0, share_); });
  }

  // The first `num_started` gradients have something to add to.
  Traffic phase_one_backward(int64_t num_sources, int64_t num_sites, int64_t num_started) {
    const auto sources = tensors(num_sources), grad_sources = tensors(num_sources);
    const auto grad_outputs = tensors(num_sites);
    const auto inverse_rms = statistics(num_sources);
    const auto accumulate = first_of(num_sources, num_started);
    const kernel::DepthAttentionBackward<Counted> op{
        .inputs = inputs(sources, num_sites),
        .inverse_rms_N = inverse_rms.data(),
        .scores_SNT = statistic(num_sites * num_sources),
        .weights_SNT = statistic(num_sites * num_sources),
        .grad_outputs_S = grad_outputs.data(),
        .grad_sum_ST = nullptr,
        .grad_weights_SNT = nullptr,
        .grad_sources_N = grad_sources.data(),
        .accumulate_N = accumulate.get(),
        .other_grad_scores_ST = statistic(num_sites)};
    std::vector<float> grad_queries(num_sites * width_);
    return count([&] { kernels::BackwardPass<Counted>(op, grad_queries.data()).run(0, share_); });
  }

  Traffic phase_two_forward(const SiteTensors& site) {
    const int64_t K = site.recent();
    const bool formed = site.partial && site.pending;
    const auto recent = tensors(K);
    const auto inverse_rms = statistics(K);
    const std::unique_ptr<bool[]> known(new bool[K]());
    const kernel::PhaseTwoForward<Counted> op{.num_recent = K,
                                              .num_tokens = all_,
                                              .width = width_,
                                              .earlier_TD = site.earlier ? tensor() : nullptr,
                                              .max_T = statistic(1),
                                              .sum_T = statistic(1),
                                              .recent_K = recent.data(),
                                              .partial_TD = formed ? tensor() : nullptr,
                                              .pending_TD = formed ? tensor() : nullptr,
                                              .sum_TD = formed ? tensor() : nullptr,
                                              .folded_query_D = ones(),
                                              .eps = kEps,
                                              .gain_D = ones(),
                                              .norm_eps = kEps,
                                              .inverse_rms_K = inverse_rms.data(),
                                              .rms_known_K = known.get(),
                                              .x_TD = tensor(),
                                              .normalized_TD = nullptr,
                                              .scores_KT = statistic(K),
                                              .weights_KT = statistic(K),
                                              .earlier_weight_T = statistic(1),
                                              .rho_T = statistic(1)};
    return count([&] { kernels::PhaseTwoForwardPass<Counted>(op, share_).run(0, share_); });
  }

  // `later`: a later site sends the partial sum a gradient.
  Traffic phase_two_backward(const SiteTensors& site, bool later, int64_t num_started) {
    const int64_t K = site.recent();
    const auto recent = tensors(K), grad_recent = tensors(K);
    const auto inverse_rms = statistics(K);
    const auto accumulate = first_of(K, num_started);
    const kernel::PhaseTwoBackward<Counted> op{.num_recent = K,
                                               .num_tokens = all_,
                                               .width = width_,
                                               .recent_K = recent.data(),
                                               .folded_query_D = ones(),
                                               .gain_D = ones(),
                                               .norm_eps = kEps,
                                               .inverse_rms_K = inverse_rms.data(),
                                               .scores_KT = statistic(K),
                                               .weights_KT = statistic(K),
                                               .earlier_weight_T = statistic(1),
                                               .rho_T = statistic(1),
                                               .kept_TD = tensor(),
                                               .kept_factor_D = ones(),
                                               .grad_x_TD = tensor(),
                                               .grad_sum_TD = later ? tensor() : nullptr,
                                               .grad_earlier_TD = site.earlier ? tensor() : nullptr,
                                               .grad_sum_T = statistic(1),
                                               .grad_recent_K = grad_recent.data(),
                                               .accumulate_K = accumulate.get()};
    std::vector<float> sums(2 * width_);
    return count([&] { kernels::PhaseTwoBackwardPass<Counted>(op, sums.data()).run(0, share_); });
  }

  Traffic rms_norm_forward(bool pending) {
    const kernel::RmsNormForward<Counted> op{.width = width_,
                                             .state_TD = tensor(),
                                             .pending_TD = pending ? tensor() : nullptr,
                                             .h_TD = tensor(),
                                             .gain_D = ones(),
                                             .eps = kEps,
                                             .y_TD = tensor(),
                                             .rho_T = statistic(1)};
    return count([&] { kernels::rms_norm_forward_rows(op, 0, share_); });
  }

  Traffic rms_norm_backward(bool later) {
    const kernel::RmsNormBackward<Counted> op{.width = width_,
                                              .h_TD = tensor(),
                                              .rho_T = statistic(1),
                                              .gain_D = ones(),
                                              .grad_y_TD = tensor(),
                                              .grad_later_TD = later ? tensor() : nullptr,
                                              .grad_h_TD = tensor()};
    std::vector<float> grad_gain(width_);
    return count([&] { kernels::rms_norm_backward_rows(op, 0, share_, grad_gain.data()); });
  }

  // The share of a tensor, on a cache line of its own. Memory is given back with the counter.
  Counted* tensor() { return static_cast<Counted*>(allocate(share_ * width_)); }

 private:
  static constexpr double kEps = 1e-6;

  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };

  void* allocate(int64_t floats) {
    constexpr size_t kLine = 64;
    const size_t bytes = (floats * sizeof(float) + kLine - 1) / kLine * kLine;
    memory_.emplace_back(std::aligned_alloc(kLine, bytes));
    std::fill_n(static_cast<float*>(memory_.back().get()), floats, 1.0F);
    return memory_.back().get();
  }
  std::vector<Counted*> tensors(int64_t count) {
    std::vector<Counted*> list;
    while (std::ssize(list) < count) list.push_back(tensor());
    return list;
  }
  float* statistic(int64_t count) {
    return static_cast<float*>(allocate(std::max<int64_t>(1, count) * all_));
  }
  std::vector<float*> statistics(int64_t count) {
    std::vector<float*> list;
    while (std::ssize(list) < count) list.push_back(statistic(1));
    return list;
  }
  const float* ones() { return static_cast<float*>(allocate(width_)); }
  static std::unique_ptr<bool[]> first_of(int64_t count, int64_t first) {
    std::unique_ptr<bool[]> flags(new bool[count]());
    std::fill_n(flags.get(), first, true);
    return flags;
  }
  kernel::DepthAttentionInputs<Counted> inputs(const std::vector<Counted*>& sources,
                                               int64_t num_sites) {
    return {sources.data(),
            static_cast<float*>(allocate(num_sites * width_)),
            std::ssize(sources),
            num_sites,
            all_,
            width_};
  }

  const int64_t all_, share_, width_;
  CacheModel cache_;
  std::vector<std::unique_ptr<void, Free>> memory_;
};

}  // namespace attnres::bench
