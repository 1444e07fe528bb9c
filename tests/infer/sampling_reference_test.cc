// Sampling against a reference that sorts the whole vocabulary and follows the definitions, with
// every combination of settings, and against the frequencies that it should have.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "attnres/infer/sampling.h"
#include "attnres/support/random.h"

namespace attnres::sampling_reference_test {
namespace {

// What an implementation could do wrong.
enum class Mistake {
  none,
  bias_after_penalties,
  prompt_counts_as_generated,
  repetition_spares_the_prompt,
  temperature_last,
  min_p_before_top_p,
  top_p_of_all,
  equals_by_falling_id,
};

struct Sequence {
  std::vector<int32_t> prompt, generated;

  TokenCounts counts() const {
    TokenCounts counts;
    counts.add_prompt(prompt);
    for (const int32_t id : generated) counts.add_generated(id);
    return counts;
  }
};

int64_t times(const std::vector<int32_t>& ids, int64_t id) {
  return std::count(ids.begin(), ids.end(), id);
}

void bias(std::vector<double>& logits, const SamplingSettings& settings) {
  for (const auto& [id, number] : settings.logit_bias) {
    logits[id] += number <= -100 ? -std::numeric_limits<double>::infinity() : number;
  }
}

void penalize(std::vector<double>& logits, const SamplingSettings& settings,
              const Sequence& sequence, Mistake mistake) {
  for (size_t id = 0; id < logits.size(); ++id) {
    const int64_t in_prompt = times(sequence.prompt, id);
    int64_t generated = times(sequence.generated, id);
    if (mistake == Mistake::prompt_counts_as_generated) generated += in_prompt;
    const bool seen =
        generated > 0 || (in_prompt > 0 && mistake != Mistake::repetition_spares_the_prompt);
    if (seen && logits[id] < 0) logits[id] *= settings.repetition_penalty;
    if (seen && logits[id] > 0) logits[id] /= settings.repetition_penalty;
    logits[id] -= generated > 0 ? settings.presence_penalty : 0;
    logits[id] -= settings.frequency_penalty * generated;
  }
}

struct Candidate {
  int64_t id;
  double logit, p;
};

double sum_of(const std::vector<Candidate>& candidates) {
  double sum = 0;
  for (const Candidate& candidate : candidates) sum += candidate.p;
  return sum;
}

void normalize(std::vector<Candidate>& candidates, double temperature) {
  for (Candidate& candidate : candidates) {
    candidate.p = std::exp((candidate.logit - candidates[0].logit) / temperature);
  }
  const double sum = sum_of(candidates);
  for (Candidate& candidate : candidates) candidate.p /= sum;
}

void keep_top_p(std::vector<Candidate>& ranked, double top_p) {
  if (top_p == 1) return;
  const double enough = top_p * sum_of(ranked);
  double sum = 0;
  size_t kept = 0;
  while (kept < ranked.size() && sum < enough) sum += ranked[kept++].p;
  ranked.resize(kept);
}

void keep_min_p(std::vector<Candidate>& ranked, double min_p) {
  std::erase_if(ranked, [least = min_p * ranked[0].p](const Candidate& c) { return c.p < least; });
}

int64_t reference(const std::vector<double>& raw, const SamplingSettings& settings,
                  const Sequence& sequence, double uniform, Mistake mistake = Mistake::none) {
  std::vector<double> logits = raw;
  if (mistake != Mistake::bias_after_penalties) bias(logits, settings);
  penalize(logits, settings, sequence, mistake);
  if (mistake == Mistake::bias_after_penalties) bias(logits, settings);

  std::vector<Candidate> ranked;
  for (size_t id = 0; id < logits.size(); ++id) {
    ranked.push_back({static_cast<int64_t>(id), logits[id], 0});
  }
  if (mistake == Mistake::equals_by_falling_id) std::reverse(ranked.begin(), ranked.end());
  std::stable_sort(ranked.begin(), ranked.end(),
                   [](const Candidate& a, const Candidate& b) { return a.logit > b.logit; });
  if (settings.temperature == 0) return ranked[0].id;

  const double early = mistake == Mistake::temperature_last ? 1 : settings.temperature;
  normalize(ranked, early);
  const std::vector<Candidate> all = ranked;
  if (settings.top_k > 0) ranked.resize(std::min<size_t>(settings.top_k, ranked.size()));
  if (mistake == Mistake::min_p_before_top_p) keep_min_p(ranked, settings.min_p);
  if (mistake == Mistake::top_p_of_all) {
    std::vector<Candidate> nucleus = all;
    keep_top_p(nucleus, settings.top_p);
    ranked.resize(std::min(ranked.size(), nucleus.size()));
  } else {
    keep_top_p(ranked, settings.top_p);
  }
  keep_min_p(ranked, settings.min_p);
  normalize(ranked, settings.temperature);

  // Without a ranking, tokens are drawn in the order of their ids.
  if (settings.top_k == 0 && settings.top_p == 1 && settings.min_p == 0) {
    std::sort(ranked.begin(), ranked.end(),
              [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
  }
  double left = uniform * sum_of(ranked);
  for (const Candidate& candidate : ranked) {
    if ((left -= candidate.p) < 0) return candidate.id;
  }
  return ranked.back().id;
}

// Every combination of settings.
std::vector<SamplingSettings> all_settings() {
  std::vector<SamplingSettings> all = {{}};
  const auto vary = [&all](auto set, const auto& values) {
    std::vector<SamplingSettings> varied;
    for (const SamplingSettings& settings : all) {
      for (const auto& value : values) {
        varied.push_back(settings);
        set(varied.back()) = value;
      }
    }
    all = varied;
  };
  using S = SamplingSettings;
  vary(
      [](S & s) -> auto& { return s.logit_bias; },
      std::vector<std::map<int32_t, double>>{{}, {{0, 1.5}, {3, -100.0}, {9, -0.7}, {199, 3.1}}});
  vary(
      [](S & s) -> auto& { return s.repetition_penalty; }, std::vector{1.0, 1.7});
  vary(
      [](S & s) -> auto& { return s.frequency_penalty; }, std::vector{0.0, 0.37});
  vary(
      [](S & s) -> auto& { return s.presence_penalty; }, std::vector{0.0, -0.83});
  vary(
      [](S & s) -> auto& { return s.temperature; }, std::vector{0.0, 0.7, 1.9});
  vary(
      [](S & s) -> auto& { return s.top_k; }, std::vector<int64_t>{0, 1, 70, 999});
  vary(
      [](S & s) -> auto& { return s.top_p; }, std::vector{1.0, 0.93, 0.31});
  vary(
      [](S & s) -> auto& { return s.min_p; }, std::vector{0.0, 0.023, 0.41});
  return all;
}

struct Case {
  std::vector<double> logits;
  Sequence sequence;
  std::vector<double> uniforms;
};

// With many equal logits where `ties`.
Case random_case(uint64_t seed, bool ties) {
  const RandomStream random(seed, "sampling");
  Case result;
  for (uint64_t i = 0; i < 200; ++i) {
    const double logit = 1.3 * random.normal(i);
    result.logits.push_back(ties ? std::round(logit) : logit);
  }
  for (uint64_t i = 0; i < 40; ++i) {
    (i % 2 == 0 ? result.sequence.prompt : result.sequence.generated)
        .push_back(static_cast<int32_t>(random.below(60, 1000 + i)));
  }
  for (uint64_t i = 0; i < 3; ++i) result.uniforms.push_back(random.uniform(2000 + i));
  return result;
}

std::vector<Case> random_cases() {
  return {random_case(1, /*ties=*/false), random_case(2, /*ties=*/true)};
}

// How often the choice is another one than the reference's.
int64_t disagreements(const std::vector<SamplingSettings>& settings, Mistake mistake) {
  int64_t count = 0;
  for (const Case& one : random_cases()) {
    const at::Tensor logits_V = at::tensor(one.logits);
    const TokenCounts counts = one.sequence.counts();
    for (const SamplingSettings& each : settings) {
      for (const double uniform : one.uniforms) {
        count += sample_token(logits_V, each, counts, uniform) !=
                 reference(one.logits, each, one.sequence, uniform, mistake);
      }
    }
  }
  return count;
}

TEST(SamplingReference, AgreesForEveryCombinationOfSettings) {
  EXPECT_EQ(disagreements(all_settings(), Mistake::none), 0);
}

TEST(SamplingReference, NoticesEveryMistake) {
  std::vector<SamplingSettings> some = all_settings();
  std::erase_if(some, [](const SamplingSettings& s) { return s.logit_bias.empty(); });
  for (const Mistake mistake :
       {Mistake::bias_after_penalties, Mistake::prompt_counts_as_generated,
        Mistake::repetition_spares_the_prompt, Mistake::temperature_last,
        Mistake::min_p_before_top_p, Mistake::top_p_of_all, Mistake::equals_by_falling_id}) {
    EXPECT_GT(disagreements(some, mistake), 0) << static_cast<int>(mistake);
  }
}

// The sum of squared deviations, each over its variance, of the frequencies of draws with a seed.
double chi_squared(const at::Tensor& logits_V, const SamplingSettings& settings,
                   const std::vector<double>& probabilities) {
  constexpr int kDraws = 20000;
  const RandomStream random(settings.seed, "frequencies");
  std::vector<double> drawn(probabilities.size());
  for (int i = 0; i < kDraws; ++i) {
    drawn[sample_token(logits_V, settings, {}, random.uniform(i))] += 1;
  }
  double sum = 0;
  for (size_t i = 0; i < drawn.size(); ++i) {
    const double expected = kDraws * probabilities[i];
    sum += (drawn[i] - expected) * (drawn[i] - expected) / expected;
  }
  return sum;
}

TEST(SamplingFrequencies, AreThoseOfTheSettings) {
  const std::vector<double> logits = {0.3, -1.0, 2.0, 0.0, 1.1, -0.4, 0.9, 1.5};
  const at::Tensor logits_V = at::tensor(logits);
  const at::Tensor softmax = (logits_V.to(at::kDouble) / 0.8).softmax(0);
  const std::vector<double> expected(softmax.const_data_ptr<double>(),
                                     softmax.const_data_ptr<double>() + softmax.numel());
  constexpr double kOneInAThousand = 24.32;  // of chi squared with 7 degrees of freedom
  for (const uint64_t seed : {1, 2, 3}) {
    EXPECT_LT(chi_squared(logits_V, {.temperature = 0.8, .seed = seed}, expected), kOneInAThousand);
    EXPECT_GT(chi_squared(logits_V, {.temperature = 0.85, .seed = seed}, expected),
              kOneInAThousand);
  }
}

}  // namespace
}  // namespace attnres::sampling_reference_test
