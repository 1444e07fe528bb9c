#include "attnres/infer/sampling.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <iterator>
#include <limits>
#include <numeric>
#include <utility>

#include "attnres/support/error.h"

namespace attnres {
namespace {

constexpr double kNever = -100;  // of logit_bias
constexpr double kLargestBias = 100;
constexpr double kLargestPenalty = 2;
constexpr double kLargestRepetitionPenalty = 100;
constexpr int64_t kRowsAtOnce = 32;  // that are in float64

void check_penalty(const char* name, double penalty) {
  require_usage(std::abs(penalty) <= kLargestPenalty, "{}: expected a number from {} to {}, got {}",
                name, -kLargestPenalty, kLargestPenalty, penalty);
}

// A copy in float64.
at::Tensor in_float64(const at::Tensor& logits) {
  return logits.detach()
      .to(at::kCPU, at::kDouble, /*non_blocking=*/false, /*copy=*/true)
      .contiguous();
}

std::span<double> numbers(const at::Tensor& logits_V) {
  return {logits_V.mutable_data_ptr<double>(), static_cast<size_t>(logits_V.numel())};
}

int64_t most_likely_of(std::span<const double> logits) {
  return std::max_element(logits.begin(), logits.end()) - logits.begin();
}

void check_logits(std::span<const double> logits) {
  const bool has_nan = std::any_of(logits.begin(), logits.end(), [](double x) { return x != x; });
  require(!has_nan,
          "sampling: the model's logits are not finite (NaN, not a number); its weights are "
          "damaged, or training diverged");
  require(!logits.empty() && std::isfinite(logits[most_likely_of(logits)]),
          "sampling: the model's logits are not finite (infinite); its weights are "
          "damaged, or training diverged");
}

void add_bias(std::span<double> logits, const SamplingSettings& settings) {
  const auto vocab_size = static_cast<int64_t>(logits.size());
  for (const auto& [id, bias] : settings.logit_bias) {
    require(id >= 0 && id < vocab_size, "sampling: logit-bias of token {}, of {} logits", id,
            vocab_size);
    double& logit = logits[id];
    logit = bias <= kNever ? -std::numeric_limits<double>::infinity() : logit + bias;
  }
}

void add_penalties(std::span<double> logits, const SamplingSettings& settings,
                   const TokenCounts& counts) {
  const auto vocab_size = static_cast<int64_t>(logits.size());
  for (const auto& [id, generated] : counts.generated()) {
    if (id >= vocab_size) continue;
    double& logit = logits[id];
    logit = logit > 0 ? logit / settings.repetition_penalty : logit * settings.repetition_penalty;
    if (generated == 0) continue;
    logit -=
        settings.presence_penalty + settings.frequency_penalty * static_cast<double>(generated);
  }
}

// Whether a token is more likely than another; equals go by id.
class BeforeInRank {
 public:
  explicit BeforeInRank(std::span<const double> logits) : logits_(logits) {}
  bool operator()(int32_t a, int32_t b) const {
    return logits_[a] != logits_[b] ? logits_[a] > logits_[b] : a < b;
  }

 private:
  std::span<const double> logits_;
};

std::vector<int32_t> tokens_of(std::span<const double> logits) {
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

// The most likely tokens, most likely first; all of them if there are fewer. A heap of the best
// sees every other token once.
std::vector<int32_t> most_likely_tokens(std::span<const double> logits, int64_t count) {
  std::vector<int32_t> ids = tokens_of(logits);
  const int64_t kept = std::clamp<int64_t>(count, 0, std::ssize(ids));
  std::partial_sort(ids.begin(), ids.begin() + kept, ids.end(), BeforeInRank(logits));
  ids.resize(kept);
  return ids;
}

// Some tokens, most likely first. Sorted as far as they are asked for, in growing parts.
class Ranking {
 public:
  Ranking(std::span<const double> logits, std::vector<int32_t> ids)
      : before_(logits), ids_(std::move(ids)) {}

  int64_t size() const { return std::ssize(ids_); }
  int32_t operator[](int64_t rank) {
    while (rank >= sorted_) sort_more();
    return ids_[rank];
  }

 private:
  void sort_more() {
    const auto begin = ids_.begin() + sorted_;
    sorted_ = std::min(size(), std::max<int64_t>(64, 4 * sorted_));
    const auto end = ids_.begin() + sorted_;
    if (end != ids_.end()) std::nth_element(begin, end, ids_.end(), before_);
    std::sort(begin, end, before_);
  }

  BeforeInRank before_;
  std::vector<int32_t> ids_;
  int64_t sorted_ = 0;
};

// Which of the numbers, whose running sums these are, a uniform number picks.
int64_t picked(const std::vector<double>& cumulative, double uniform) {
  const auto found =
      std::upper_bound(cumulative.begin(), cumulative.end(), uniform * cumulative.back());
  return std::min<int64_t>(found - cumulative.begin(), std::ssize(cumulative) - 1);
}

int64_t sample_from_all(std::span<const double> weights, double uniform) {
  std::vector<double> cumulative(weights.size());
  std::partial_sum(weights.begin(), weights.end(), cumulative.begin());
  return picked(cumulative, uniform);
}

int64_t sample_from_best(std::span<const double> logits, std::span<const double> weights,
                         const SamplingSettings& settings, double uniform) {
  std::vector<int32_t> ids =
      settings.top_k > 0 ? most_likely_tokens(logits, settings.top_k) : tokens_of(logits);
  double total = 0;
  for (const int32_t id : ids) total += weights[id];
  const double enough =
      settings.top_p < 1 ? settings.top_p * total : std::numeric_limits<double>::infinity();
  // Tokens that have less than a share of what top-p leaves out are left out together, whatever
  // their rank. Half of it is far from where rounding decides.
  const double share = (1 - settings.top_p) * total / static_cast<double>(ids.size());
  const double least = std::max(settings.min_p, share / 2);
  std::erase_if(ids, [&](int32_t id) { return weights[id] < least; });

  Ranking ranking(logits, std::move(ids));
  std::vector<double> cumulative;
  double sum = 0;
  while (std::ssize(cumulative) < ranking.size() && sum < enough) {
    cumulative.push_back(sum += weights[ranking[std::ssize(cumulative)]]);
  }
  return ranking[picked(cumulative, uniform)];
}

// Calls f(i) for 0 .. count - 1 on all threads.
template <class F>
void for_each_of(int64_t count, const F& f) {
  at::parallel_for(0, count, 1, [&](int64_t first, int64_t last) {
    const at::NoGradGuard not_recording;  // which each thread has to say
    for (int64_t i = first; i < last; ++i) f(i);
  });
}

// What may come: everything, without a constraint.
struct Allowed {
  const AllowedTokens* tokens = nullptr;
  std::span<const int64_t> ends = {};
  bool may_end = true;
};

constexpr double kImpossible = -std::numeric_limits<double>::infinity();

void forbid_others(std::span<double> logits, const Allowed& allowed) {
  std::vector<std::pair<int64_t, double>> of_ends;
  for (const int64_t id : allowed.ends) {
    if (id < 0 || id >= std::ssize(logits)) continue;
    of_ends.emplace_back(id, allowed.may_end ? logits[id] : kImpossible);
  }
  if (allowed.tokens != nullptr) {
    for (int64_t id = 0; id < std::ssize(logits); ++id) {
      if (!(*allowed.tokens)[id]) logits[id] = kImpossible;
    }
  }
  for (const auto& [id, logit] : of_ends) logits[id] = logit;
}

// As sample_token; changes the logits, which are float64.
int64_t sample_from(const at::Tensor& logits_V, const SamplingSettings& settings,
                    const TokenCounts& counts, double uniform, const Allowed& allowed = {}) {
  const std::span<double> logits = numbers(logits_V);
  check_logits(logits);
  forbid_others(logits, allowed);
  add_bias(logits, settings);
  add_penalties(logits, settings, counts);
  const int64_t most_likely = most_likely_of(logits);
  const double largest = logits[most_likely];
  require(
      std::isfinite(largest),
      "sampling: logit-bias, penalties, the answer's form and the tokens that end it leave no "
      "token with a finite logit; forbid fewer tokens, or use a repetition-penalty nearer to 1");
  if (settings.temperature == 0) return most_likely;

  // Each token's probability over that of the most likely one.
  const at::Tensor weights_V = ((logits_V - largest) / settings.temperature).exp_();
  const std::span<const double> weights = numbers(weights_V);
  if (settings.top_k == 0 && settings.top_p == 1 && settings.min_p == 0) {
    return sample_from_all(weights, uniform);
  }
  return sample_from_best(logits, weights, settings, uniform);
}

// As token_logprobs, of a row's logits in float64.
TokenLogprobs logprobs_of(const at::Tensor& logits_V, int64_t token, int64_t top) {
  const std::span<const double> logits = numbers(logits_V);
  check_logits(logits);
  const auto vocab_size = static_cast<int64_t>(logits.size());
  require(token >= 0 && token < vocab_size, "log-probabilities: token {}, of {} logits", token,
          vocab_size);
  const double largest = logits[most_likely_of(logits)];
  const double log_sum = std::log((logits_V - largest).exp_().sum().item<double>());
  const auto logprob = [&](int64_t id) { return (logits[id] - largest) - log_sum; };

  TokenLogprobs result{.chosen = logprob(token), .top = {}};
  for (const int32_t id : most_likely_tokens(logits, top)) {
    result.top.push_back({id, logprob(id)});
  }
  return result;
}

// A row's choice. The logits are float64, and may be changed.
ChosenToken chosen_from(const at::Tensor& logits_V, const TokenChoice& choice) {
  const GenerationSettings& settings = *choice.settings;
  const bool wants_logprobs = settings.top_logprobs >= 0;
  const at::Tensor changed_V = wants_logprobs ? logits_V.clone() : logits_V;
  const int64_t size = settings.vocabulary > 0 ? settings.vocabulary : logits_V.numel();
  ChosenToken chosen;
  Allowed allowed{.ends = settings.ends, .may_end = choice.may_end};
  if (choice.constraint != nullptr) {
    allowed.tokens = &choice.constraint->allowed();
    allowed.may_end = choice.may_end && allowed.tokens->end;
    if (allowed.tokens->none) {
      chosen.ends = true;
      return chosen;
    }
  }
  chosen.token = static_cast<int32_t>(sample_from(changed_V.narrow(0, 0, size), settings.sampling,
                                                  *choice.counts, choice.uniform, allowed));
  chosen.ends =
      std::find(settings.ends.begin(), settings.ends.end(), chosen.token) != settings.ends.end();
  if (choice.constraint != nullptr && !chosen.ends) {
    choice.constraint->accept(chosen.token);
    chosen.completes = choice.constraint->allowed().none;
  }
  if (wants_logprobs && !chosen.ends) {
    chosen.logprobs = logprobs_of(logits_V, chosen.token, settings.top_logprobs);
  }
  return chosen;
}

}  // namespace

void check(const SamplingSettings& settings) {
  for (const auto& [id, bias] : settings.logit_bias) {
    require_usage(id >= 0, "logit-bias: expected a token id, 0 or more, got {}", id);
    require_usage(bias <= kLargestBias,
                  "logit-bias: expected a number from {}, which means never, to {} for token {}, "
                  "got {}",
                  kNever, kLargestBias, id, bias);
  }
  require_usage(settings.repetition_penalty >= 1 / kLargestRepetitionPenalty &&
                    settings.repetition_penalty <= kLargestRepetitionPenalty,
                "repetition-penalty: expected a number from {} to {} (1 is none), got {}",
                1 / kLargestRepetitionPenalty, kLargestRepetitionPenalty,
                settings.repetition_penalty);
  check_penalty("frequency-penalty", settings.frequency_penalty);
  check_penalty("presence-penalty", settings.presence_penalty);
  require_usage(settings.temperature >= 0 && std::isfinite(settings.temperature),
                "temperature: expected 0 (the most likely token) or more, got {}",
                settings.temperature);
  require_usage(settings.top_k >= 0, "top-k: expected 0 (all tokens) or more, got {}",
                settings.top_k);
  require_usage(settings.top_p > 0 && settings.top_p <= 1,
                "top-p: expected more than 0 and at most 1, got {}", settings.top_p);
  require_usage(settings.min_p >= 0 && settings.min_p <= 1,
                "min-p: expected 0 (all tokens) to 1, got {}", settings.min_p);
}

void check_logit_bias(const SamplingSettings& settings, int64_t vocab_size) {
  int64_t forbidden = 0;
  for (const auto& [id, bias] : settings.logit_bias) {
    require_usage(id >= 0 && id < vocab_size,
                  "logit-bias: token id {} is out of range: this vocabulary has ids 0 to {}", id,
                  vocab_size - 1);
    forbidden += bias <= kNever ? 1 : 0;
  }
  require_usage(forbidden < vocab_size, "logit-bias: every token is forbidden; forbid fewer");
}

void TokenCounts::add_prompt(const std::vector<int32_t>& ids) {
  for (const int32_t id : ids) generated_.try_emplace(id, 0);
}

void TokenCounts::add_generated(int32_t id) {
  ++generated_[id];
}

int64_t sample_token(const at::Tensor& logits_V, const SamplingSettings& settings,
                     const TokenCounts& counts, double uniform) {
  return sample_from(in_float64(logits_V), settings, counts, uniform);
}

std::vector<ChosenToken> sample_tokens(const at::Tensor& logits_TV,
                                       const std::vector<TokenChoice>& choices) {
  std::vector<ChosenToken> chosen(choices.size());
  for (int64_t done = 0; done < std::ssize(choices); done += kRowsAtOnce) {
    const int64_t count = std::min(kRowsAtOnce, std::ssize(choices) - done);
    const at::Tensor rows_TV = in_float64(logits_TV.narrow(0, done, count));
    for_each_of(count, [&](int64_t i) {
      try {
        chosen[done + i] = chosen_from(rows_TV.select(0, i), choices[done + i]);
      } catch (const std::exception& e) {
        chosen[done + i].error = e.what();
      }
    });
  }
  return chosen;
}

std::vector<TokenLogprobs> token_logprobs(const at::Tensor& logits_TV,
                                          std::span<const int32_t> tokens, int64_t top) {
  const at::Tensor rows_TV = in_float64(logits_TV);
  std::vector<TokenLogprobs> logprobs(tokens.size());
  for_each_of(std::ssize(tokens),
              [&](int64_t i) { logprobs[i] = logprobs_of(rows_TV.select(0, i), tokens[i], top); });
  return logprobs;
}

}  // namespace attnres
