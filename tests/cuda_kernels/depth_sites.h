// The sites of a group as models run them, forward and backward, by the launches of depth
// attention's CUDA kernels on any Launcher whose memory the host can read; and the same by the
// formulas.
#pragma once

#include <utility>

#include "attnres/ops/depth_attention/cuda_schedule.h"
#include "attnres/ops/depth_attention/reference_sites.h"
#include "tests/cuda_kernels/host_rows.h"

namespace attnres::gpu {

// Phase 1 reads `earlier` sources; the sites read `finished` more, and the sum of the outputs of
// the sublayers before them.
struct SiteGroup {
  int64_t earlier, finished, sites, tokens, width;
  bool keeps_x = false;  // for the backward, else h rho

  int64_t sources() const { return earlier + finished; }
};

template <class Storage>
struct GroupData {
  std::vector<std::vector<Storage>> sources, outputs, grad_x;  // outputs: of all sites but the last
  std::vector<float> queries, gains;                           // [S, D]
  // Where gradients of sources are added: every second one has some already.
  std::vector<std::vector<float>> slots;

  explicit GroupData(const SiteGroup& group, uint64_t seed = 1) {
    HostNumbers draw(seed);
    const int64_t numbers = group.tokens * group.width, D = group.width;
    for (int64_t n = 0; n < group.sources(); ++n) {
      sources.push_back(draw.rows<Storage>(numbers));
      slots.push_back(draw.rows<float>(numbers));
    }
    for (int64_t s = 0; s + 1 < group.sites; ++s) outputs.push_back(draw.rows<Storage>(numbers));
    for (int64_t s = 0; s < group.sites; ++s) grad_x.push_back(draw.rows<Storage>(numbers));
    queries = draw.rows<float>(group.sites * D, 0, 3 / std::sqrt(static_cast<double>(D)));
    gains = draw.rows<float>(group.sites * D, 1, 0.3);
  }
};

template <class Storage>
struct GroupResults {
  std::vector<std::vector<Storage>> x, grad_outputs;
  std::vector<std::vector<float>> slots;
  std::vector<float> grad_queries, grad_gains;  // [S, D]

  uint64_t hash() const {
    BitHash hash;
    for (const auto* all : {&x, &grad_outputs}) {
      for (const auto& rows : *all) hash.add(rows);
    }
    for (const auto& rows : slots) hash.add(rows);
    hash.add(grad_queries);
    hash.add(grad_gains);
    return hash.value();
  }
};

inline constexpr double kSitesEps = 1e-6, kSitesNormEps = 1;

// Of one group; `known` of the earlier sources' 1 / RMS are computed by another phase 1 before.
template <class Storage, class Launcher>
class GroupRun {
 public:
  using Rows = std::vector<Storage>;
  using Floats = std::vector<float>;

  GroupRun(const SiteGroup& group, const GroupData<Storage>& data, const Launcher& launcher)
      : group_(group),
        data_(data),
        launcher_(launcher),
        T_(group.tokens),
        D_(group.width),
        S_(group.sites),
        E_(group.earlier),
        results_{.x = std::vector<Rows>(S_, Rows(T_ * D_)),
                 .grad_outputs = std::vector<Rows>(S_ - 1, Rows(T_ * D_)),
                 .slots = data.slots,
                 .grad_queries = Floats(S_ * D_),
                 .grad_gains = Floats(S_ * D_)},
        factors_(S_ * D_),
        memory_(runs_of_tokens(T_, D_) * std::max<int64_t>(2, S_) * D_) {}

  bool run() {
    sites_.reserve(S_);
    for (int64_t i = 0; i < S_ * D_; ++i) factors_[i] = 1 / data_.gains[i];
    if (E_ > 0 && !phase_one()) return false;
    for (int64_t s = 0; s < S_; ++s) {
      if (!site(s)) return false;
    }
    for (int64_t n = 0; n < group_.sources(); ++n) accumulate_.push_back(n % 2 == 0);
    for (int64_t s = S_ - 1; s >= 0; --s) {
      if (!site_backward(s)) return false;
    }
    return E_ == 0 || phase_one_backward();
  }
  const GroupResults<Storage>& results() const { return results_; }

 private:
  struct Site {
    Rows partial, normalized;  // the partial sum, if it is formed here
    std::vector<const Storage*> recent;
    std::vector<Floats> inverse_rms;
    Floats scores, weights, earlier_weight, rho;
  };

  // Slots are float32, which is the storage's own type or the other one.
  static void put_slot(Floats& slot, Storage*& gradient, float*& sum) {
    if constexpr (std::is_same_v<Storage, float>) {
      gradient = slot.data();
    } else {
      sum = slot.data();
    }
  }

  bool phase_one() {
    o_.assign(S_, Rows(T_ * D_));
    grad_o_ = o_;
    earlier_rms_.assign(E_, Floats(T_));
    for (Floats* of_sites : {&max_, &sum_, &grad_sum_, &grad_scores_}) of_sites->resize(S_ * T_);
    scores_.resize(S_ * E_ * T_);
    weights_.resize(S_ * E_ * T_);
    std::vector<Storage*> outputs;
    for (Rows& o : o_) outputs.push_back(o.data());
    std::vector<const Storage*> sources;
    std::vector<float*> rms;
    for (int64_t n = 0; n < E_; ++n) {
      sources.push_back(data_.sources[n].data());
      rms.push_back(earlier_rms_[n].data());
    }
    // The second time those of the first half are known.
    bool done = true;
    for (const int64_t known : {int64_t{0}, E_ / 2}) {
      bool rms_known[kMostSources] = {};
      std::fill_n(rms_known, known, true);
      for (int64_t n = known; n < E_; ++n) std::fill_n(earlier_rms_[n].data(), T_, NAN);
      done = done && phase_one_forward<Storage>(
                         {.inputs = {sources.data(), data_.queries.data(), E_, S_, T_, D_},
                          .eps = kSitesEps,
                          .complete = false,
                          .inverse_rms_N = rms.data(),
                          .rms_known_N = rms_known,
                          .outputs_S = outputs.data(),
                          .max_ST = max_.data(),
                          .sum_ST = sum_.data(),
                          .scores_SNT = scores_.data(),
                          .weights_SNT = weights_.data()},
                         launcher_);
    }
    return done;
  }

  bool site(int64_t s) {
    Site& site = sites_.emplace_back();
    for (int64_t n = E_; n < group_.sources(); ++n) site.recent.push_back(data_.sources[n].data());
    const bool formed = s > 1;
    if (s == 1) site.recent.push_back(data_.outputs[0].data());
    if (formed) site.recent.push_back((site.partial = Rows(T_ * D_)).data());
    const auto K = std::ssize(site.recent);
    site.inverse_rms.assign(K, Floats(T_));
    site.scores.resize(K * T_);
    site.weights.resize(K * T_);
    site.earlier_weight.resize(T_);
    site.rho.resize(T_);
    site.normalized.resize(T_ * D_);
    std::vector<float*> rms;
    for (Floats& of : site.inverse_rms) rms.push_back(of.data());
    const bool rms_known[kMostSources] = {};
    const Storage* partial = nullptr;
    if (formed) partial = s == 2 ? data_.outputs[0].data() : sites_[s - 1].partial.data();
    return phase_two_forward<Storage>(
        {.num_recent = K,
         .num_tokens = T_,
         .width = D_,
         .earlier_TD = E_ > 0 ? o_[s].data() : nullptr,
         .max_T = max_.data() + s * T_ * (E_ > 0),
         .sum_T = sum_.data() + s * T_ * (E_ > 0),
         .recent_K = site.recent.data(),
         .partial_TD = partial,
         .pending_TD = formed ? data_.outputs[s - 1].data() : nullptr,
         .sum_TD = formed ? site.partial.data() : nullptr,
         .folded_query_D = data_.queries.data() + s * D_,
         .eps = kSitesEps,
         .gain_D = data_.gains.data() + s * D_,
         .norm_eps = kSitesNormEps,
         .inverse_rms_K = rms.data(),
         .rms_known_K = rms_known,
         .x_TD = results_.x[s].data(),
         .normalized_TD = group_.keeps_x ? nullptr : site.normalized.data(),
         .scores_KT = site.scores.data(),
         .weights_KT = site.weights.data(),
         .earlier_weight_T = E_ > 0 ? site.earlier_weight.data() : nullptr,
         .rho_T = site.rho.data()},
        launcher_);
  }

  bool site_backward(int64_t s) {
    const Site& site = sites_[s];
    const auto K = std::ssize(site.recent);
    std::vector<const float*> rms;
    for (const Floats& of : site.inverse_rms) rms.push_back(of.data());
    std::vector<Storage*> gradients(K, nullptr);
    std::vector<float*> sums(K, nullptr);
    bool accumulate[kMostSources] = {};
    for (int64_t k = 0; k < group_.finished; ++k) {
      const int64_t n = E_ + k;
      put_slot(results_.slots[n], gradients[k], sums[k]);
      accumulate[k] = std::exchange(accumulate_[n], 1) != 0;
    }
    if (s > 0) gradients.back() = results_.grad_outputs[s - 1].data();
    Floats query_and_gain(2 * D_);
    const bool done = phase_two_backward<Storage>(
        {.num_recent = K,
         .num_tokens = T_,
         .width = D_,
         .recent_K = site.recent.data(),
         .folded_query_D = data_.queries.data() + s * D_,
         .gain_D = data_.gains.data() + s * D_,
         .norm_eps = kSitesNormEps,
         .inverse_rms_K = rms.data(),
         .scores_KT = site.scores.data(),
         .weights_KT = site.weights.data(),
         .earlier_weight_T = site.earlier_weight.data(),
         .rho_T = site.rho.data(),
         .kept_TD = group_.keeps_x ? results_.x[s].data() : site.normalized.data(),
         .kept_factor_D = group_.keeps_x ? factors_.data() + s * D_ : nullptr,
         .grad_x_TD = data_.grad_x[s].data(),
         .grad_sum_TD = s > 0 && s + 1 < S_ ? results_.grad_outputs[s].data() : nullptr,
         .grad_earlier_TD = E_ > 0 ? grad_o_[s].data() : nullptr,
         .grad_sum_T = grad_sum_.data() + s * T_ * (E_ > 0),
         .grad_recent_K = gradients.data(),
         .accumulate_K = accumulate,
         .grad_scores_T = grad_scores_.data() + s * T_ * (E_ > 0),
         .grad_sums_K = sums.data()},
        memory_.data(), query_and_gain.data(), launcher_);
    std::copy_n(query_and_gain.data(), D_, results_.grad_queries.data() + s * D_);
    std::copy_n(query_and_gain.data() + D_, D_, results_.grad_gains.data() + s * D_);
    return done;
  }

  bool phase_one_backward() {
    std::vector<const Storage*> sources, grads;
    std::vector<const float*> rms;
    std::vector<Storage*> gradients(E_, nullptr);
    std::vector<float*> sums(E_, nullptr);
    bool accumulate[kMostSources] = {};
    for (int64_t n = 0; n < E_; ++n) {
      sources.push_back(data_.sources[n].data());
      rms.push_back(earlier_rms_[n].data());
      put_slot(results_.slots[n], gradients[n], sums[n]);
      accumulate[n] = accumulate_[n] != 0;
    }
    for (const Rows& grad : grad_o_) grads.push_back(grad.data());
    Floats queries(S_ * D_);
    const bool done = gpu::phase_one_backward<Storage>(
        {.inputs = {sources.data(), data_.queries.data(), E_, S_, T_, D_},
         .inverse_rms_N = rms.data(),
         .scores_SNT = scores_.data(),
         .weights_SNT = weights_.data(),
         .grad_outputs_S = grads.data(),
         .grad_sum_ST = nullptr,
         .grad_weights_SNT = nullptr,
         .grad_sources_N = gradients.data(),
         .accumulate_N = accumulate,
         .other_grad_scores_ST = grad_scores_.data(),
         .grad_sums_N = sums.data()},
        memory_.data(), queries.data(), launcher_);
    for (size_t i = 0; i < queries.size(); ++i) results_.grad_queries[i] += queries[i];
    return done;
  }

  const SiteGroup& group_;
  const GroupData<Storage>& data_;
  const Launcher& launcher_;
  const int64_t T_, D_, S_, E_;
  GroupResults<Storage> results_;
  std::vector<char> accumulate_;
  std::vector<Rows> o_, grad_o_;
  std::vector<Floats> earlier_rms_;
  Floats factors_;  // 1 / gain
  Floats max_, sum_, scores_, weights_, grad_sum_, grad_scores_, memory_;
  std::vector<Site> sites_;
};

// The same by the formulas, in float64.
struct ExpectedResults {
  std::vector<std::vector<double>> x, grad_outputs, slots;
  std::vector<double> grad_queries, grad_gains;
};

template <class Storage>
ExpectedResults expected_results(const SiteGroup& group, const GroupData<Storage>& data) {
  using Vector = reference::Vector<double>;
  const int64_t D = group.width, S = group.sites;
  const auto row = [&](const auto& rows, int64_t t) {
    Vector numbers;
    for (int64_t c = 0; c < D; ++c) numbers.push_back(number(rows[t * D + c]));
    return numbers;
  };
  ExpectedResults all;
  all.x.resize(S);
  all.grad_outputs.resize(S - 1);
  all.grad_queries.resize(S * D);
  all.grad_gains.resize(S * D);
  for (const auto& slot : data.slots) {
    all.slots.emplace_back(slot.begin(), slot.end());
    if (all.slots.size() % 2 == 0) std::fill(all.slots.back().begin(), all.slots.back().end(), 0);
  }
  for (int64_t t = 0; t < group.tokens; ++t) {
    reference::Sites<double> sites{.sources_ND = {},
                                   .outputs_SD = {},
                                   .sums = true,
                                   .query_SD = {},
                                   .key_gain_SD = reference::Matrix<double>(S, Vector(D, 1.0)),
                                   .norm_gain_SD = {},
                                   .eps = kSitesEps,
                                   .norm_eps = kSitesNormEps};
    reference::Matrix<double> grad_x;
    for (const auto& source : data.sources) sites.sources_ND.push_back(row(source, t));
    for (const auto& output : data.outputs) sites.outputs_SD.push_back(row(output, t));
    for (int64_t s = 0; s < S; ++s) {
      sites.query_SD.push_back(row(data.queries, s));
      sites.norm_gain_SD.push_back(row(data.gains, s));
      grad_x.push_back(row(data.grad_x[s], t));
    }
    const auto x = reference::site_inputs(sites);
    const auto grad = reference::site_inputs_backward(sites, grad_x);
    for (int64_t s = 0; s < S; ++s) all.x[s].insert(all.x[s].end(), x[s].begin(), x[s].end());
    for (int64_t s = 0; s + 1 < S; ++s) {
      auto& to = all.grad_outputs[s];
      to.insert(to.end(), grad.outputs_SD[s].begin(), grad.outputs_SD[s].end());
    }
    for (int64_t c = 0; c < D; ++c) {
      for (size_t n = 0; n < all.slots.size(); ++n)
        all.slots[n][t * D + c] += grad.sources_ND[n][c];
      for (int64_t s = 0; s < S; ++s) {
        all.grad_queries[s * D + c] += grad.query_SD[s][c];
        all.grad_gains[s * D + c] += grad.norm_gain_SD[s][c];
      }
    }
  }
  return all;
}

// The largest error of each kind of result.
struct GroupErrors {
  double x = 0, outputs = 0, slots = 0, queries = 0, gains = 0;
};

template <class Storage>
GroupErrors errors_of(const GroupResults<Storage>& is, const ExpectedResults& should) {
  GroupErrors errors;
  const auto most = [](double& error, const auto& actual, const auto& expected) {
    for (size_t i = 0; i < actual.size(); ++i) {
      error = std::max(error, relative_error(actual[i], expected[i]));
    }
  };
  most(errors.x, is.x, should.x);
  most(errors.outputs, is.grad_outputs, should.grad_outputs);
  most(errors.slots, is.slots, should.slots);
  errors.queries = relative_error(is.grad_queries, should.grad_queries);
  errors.gains = relative_error(is.grad_gains, should.grad_gains);
  return errors;
}

}  // namespace attnres::gpu
