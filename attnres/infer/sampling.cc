#include "attnres/infer/sampling.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "attnres/support/error.h"

namespace attnres {
namespace {

constexpr double kNever = -100;  // of logit_bias
constexpr double kLargestBias = 100;
constexpr double kLargestPenalty = 2;

void check_penalty(const char* name, double penalty) {
  require_usage(std::abs(penalty) <= kLargestPenalty, "{}: expected a number from {} to {}, got {}",
                name, -kLargestPenalty, kLargestPenalty, penalty);
}

// A copy in float64.
at::Tensor in_float64(const at::Tensor& logits_V) {
  return logits_V.detach()
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
  require(!logits.empty() && !has_nan && std::isfinite(logits[most_likely_of(logits)]),
          "sampling: the model's logits are not finite; its weights are damaged, or training "
          "diverged");
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

// Tokens, most likely first and equals by id. Sorted as far as they are asked for.
class Ranking {
 public:
  explicit Ranking(std::span<const double> logits) : logits_(logits), ids_(logits.size()) {
    std::iota(ids_.begin(), ids_.end(), 0);
  }

  int64_t operator[](int64_t rank) {
    while (rank >= sorted_) sort_more();
    return ids_[rank];
  }

 private:
  void sort_more() {
    const auto before = [this](int64_t a, int64_t b) {
      return logits_[a] != logits_[b] ? logits_[a] > logits_[b] : a < b;
    };
    const auto begin = ids_.begin() + sorted_;
    sorted_ = std::min(static_cast<int64_t>(ids_.size()), std::max<int64_t>(64, 4 * sorted_));
    const auto end = ids_.begin() + sorted_;
    if (end != ids_.end()) std::nth_element(begin, end, ids_.end(), before);
    std::sort(begin, end, before);
  }

  std::span<const double> logits_;
  std::vector<int64_t> ids_;
  int64_t sorted_ = 0;
};

// Which of the numbers, whose running sums these are, a uniform number picks.
int64_t picked(const std::vector<double>& cumulative, double uniform) {
  const auto found =
      std::upper_bound(cumulative.begin(), cumulative.end(), uniform * cumulative.back());
  return std::min<int64_t>(found - cumulative.begin(), std::ssize(cumulative) - 1);
}

// exp((logit - largest) / temperature): a token's probability over that of the most likely one.
class Weights {
 public:
  Weights(std::span<const double> logits, double largest, double temperature)
      : logits_(logits), largest_(largest), temperature_(temperature) {}

  int64_t size() const { return std::ssize(logits_); }
  double operator[](int64_t id) const { return std::exp((logits_[id] - largest_) / temperature_); }

 private:
  std::span<const double> logits_;
  double largest_, temperature_;
};

int64_t sample_from_all(const Weights& weights, double uniform) {
  std::vector<double> cumulative(weights.size());
  double sum = 0;
  for (int64_t id = 0; id < weights.size(); ++id) cumulative[id] = sum += weights[id];
  return picked(cumulative, uniform);
}

// Top-k, top-p and min-p each keep a beginning of the ranking, and together the shortest.
int64_t sample_from_best(const Weights& weights, Ranking& ranking, const SamplingSettings& settings,
                         double uniform) {
  const bool all = settings.top_k == 0 || settings.top_k >= weights.size();
  const int64_t most = all ? weights.size() : settings.top_k;
  double enough = std::numeric_limits<double>::infinity();
  if (settings.top_p < 1) {
    double total = 0;
    for (int64_t i = 0; i < most; ++i) total += weights[all ? i : ranking[i]];
    enough = settings.top_p * total;
  }
  std::vector<double> cumulative;
  double sum = 0;
  while (std::ssize(cumulative) < most && sum < enough) {
    const double next = weights[ranking[std::ssize(cumulative)]];
    if (next < settings.min_p) break;
    cumulative.push_back(sum += next);
  }
  return ranking[picked(cumulative, uniform)];
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
  require_usage(settings.repetition_penalty > 0 && std::isfinite(settings.repetition_penalty),
                "repetition-penalty: expected more than 0 (1 is none), got {}",
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
  for (const auto& [id, bias] : settings.logit_bias) {
    require_usage(id >= 0 && id < vocab_size,
                  "logit-bias: token id {} is out of range: this vocabulary has ids 0 to {}", id,
                  vocab_size - 1);
  }
}

void TokenCounts::add_prompt(const std::vector<int32_t>& ids) {
  for (const int32_t id : ids) generated_.try_emplace(id, 0);
}

void TokenCounts::add_generated(int32_t id) {
  ++generated_[id];
}

int64_t sample_token(const at::Tensor& logits_V, const SamplingSettings& settings,
                     const TokenCounts& counts, double uniform) {
  const at::Tensor adjusted_V = in_float64(logits_V);
  const std::span<double> logits = numbers(adjusted_V);
  check_logits(logits);
  add_bias(logits, settings);
  add_penalties(logits, settings, counts);
  const int64_t most_likely = most_likely_of(logits);
  const double largest = logits[most_likely];
  require(std::isfinite(largest),
          "sampling: logit-bias and penalties leave no token with a finite logit; forbid fewer "
          "tokens, or use a repetition-penalty nearer to 1");
  if (settings.temperature == 0) return most_likely;

  const Weights weights(logits, largest, settings.temperature);
  if (settings.top_k == 0 && settings.top_p == 1 && settings.min_p == 0) {
    return sample_from_all(weights, uniform);
  }
  Ranking ranking(logits);
  return sample_from_best(weights, ranking, settings, uniform);
}

TokenLogprobs token_logprobs(const at::Tensor& logits_V, int64_t token, int64_t top) {
  const at::Tensor logits_f64 = in_float64(logits_V);
  const std::span<const double> logits = numbers(logits_f64);
  check_logits(logits);
  const auto vocab_size = static_cast<int64_t>(logits.size());
  require(token >= 0 && token < vocab_size, "log-probabilities: token {}, of {} logits", token,
          vocab_size);
  const double largest = logits[most_likely_of(logits)];
  double sum = 0;
  for (const double logit : logits) sum += std::exp(logit - largest);
  const auto logprob = [&](int64_t id) { return (logits[id] - largest) - std::log(sum); };

  TokenLogprobs result{.chosen = logprob(token), .top = {}};
  Ranking ranking(logits);
  for (int64_t rank = 0; rank < std::min(top, vocab_size); ++rank) {
    const int64_t id = ranking[rank];
    result.top.push_back({static_cast<int32_t>(id), logprob(id)});
  }
  return result;
}

}  // namespace attnres
