#include "attnres/infer/sampling.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "attnres/support/error.h"
#include "tests/text/test_files.h"

namespace attnres::sampling_test {
namespace {

// How often each token is drawn when the uniform numbers are spread evenly.
std::vector<double> frequencies(const at::Tensor& logits, const SamplingSettings& settings) {
  constexpr int kDraws = 20000;
  std::vector<double> counts(logits.numel());
  for (int i = 0; i < kDraws; ++i) {
    counts[sample_token(logits, settings, {}, (i + 0.5) / kDraws)] += 1.0 / kDraws;
  }
  return counts;
}

void expect_near(const std::vector<double>& actual, const std::vector<double>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) EXPECT_NEAR(actual[i], expected[i], 2e-4) << i;
}

// Probabilities 0.1, 0.4, 0.2, 0.3.
const at::Tensor& logits() {
  static const at::Tensor logits = at::tensor({0.1, 0.4, 0.2, 0.3}).log() + 7;
  return logits;
}

TokenLogprobs token_logprobs(const at::Tensor& logits_V, int32_t token, int64_t top) {
  return attnres::token_logprobs(logits_V.unsqueeze(0), {&token, 1}, top).at(0);
}

TEST(SampleToken, DrawsFromTheSoftmax) {
  expect_near(frequencies(logits(), {}), {0.1, 0.4, 0.2, 0.3});
}

TEST(SampleToken, TemperatureSharpens) {
  expect_near(frequencies(logits(), {.temperature = 0.5}),
              {0.01 / 0.3, 0.16 / 0.3, 0.04 / 0.3, 0.09 / 0.3});
}

TEST(SampleToken, TopKKeepsTheMostLikely) {
  expect_near(frequencies(logits(), {.top_k = 2}), {0, 4.0 / 7, 0, 3.0 / 7});
  expect_near(frequencies(logits(), {.top_k = 1}), {0, 1, 0, 0});
  expect_near(frequencies(logits(), {.top_k = 99}), {0.1, 0.4, 0.2, 0.3});
}

TEST(SampleToken, TopPKeepsTheFewestThatHoldTheProbability) {
  expect_near(frequencies(logits(), {.top_p = 0.69}), {0, 4.0 / 7, 0, 3.0 / 7});
  expect_near(frequencies(logits(), {.top_p = 0.71}), {0, 4.0 / 9, 2.0 / 9, 3.0 / 9});
  expect_near(frequencies(logits(), {.top_p = 1e-9}), {0, 1, 0, 0});
}

TEST(SampleToken, TopPCountsWhatTopKLeft) {
  expect_near(frequencies(logits(), {.top_k = 2, .top_p = 0.5}), {0, 1, 0, 0});
}

TEST(SampleToken, MinPComparesWithTheMostLikely) {
  expect_near(frequencies(logits(), {.min_p = 0.74}), {0, 4.0 / 7, 0, 3.0 / 7});
  expect_near(frequencies(logits(), {.min_p = 0.76}), {0, 1, 0, 0});
  expect_near(frequencies(logits(), {.min_p = 1}), {0, 1, 0, 0});
}

TEST(SampleToken, BiasIsAddedToLogits) {
  expect_near(frequencies(logits(), {.logit_bias = {{0, std::log(4.0)}, {3, -100.0}}}),
              {0.4, 0.4, 0.2, 0});
}

// -100 is never, however unlikely the others are.
TEST(SampleToken, BiasOfMinus100Forbids) {
  const at::Tensor certain = at::tensor({1e4, 0.0, 0.0});
  for (const double never : {-100.0, -1e9, -std::numeric_limits<double>::infinity()}) {
    EXPECT_EQ(sample_token(certain, {.logit_bias = {{0, never}}}, {}, 0.1), 1);
    EXPECT_EQ(sample_token(certain, {.logit_bias = {{0, never}}, .temperature = 0}, {}, 0.1), 1);
  }
  EXPECT_EQ(sample_token(certain, {.logit_bias = {{0, -99.0}}}, {}, 0.1), 0);
  EXPECT_THROW(sample_token(at::tensor({0.0, -INFINITY}), {.logit_bias = {{0, -100.0}}}, {}, 0.1),
               Error);
  EXPECT_THROW(sample_token(certain, {.logit_bias = {{3, 1.0}}}, {}, 0.1), Error);
}

// Two tokens of the prompt, one of which was generated twice, and one more that was once.
TEST(SampleToken, PenaltiesCountThePromptAndWhatIsGenerated) {
  TokenCounts counts;
  counts.add_prompt({0, 1, 0, 99});
  for (const int32_t id : {1, 1, 2}) counts.add_generated(id);
  const at::Tensor logits = at::tensor({1.0, 2.0, -1.0, 0.5});
  const auto expect_logits = [&](const SamplingSettings& settings, const at::Tensor& adjusted) {
    for (int i = 0; i < 100; ++i) {
      const double u = (i + 0.5) / 100;
      EXPECT_EQ(sample_token(logits, settings, counts, u), sample_token(adjusted, {}, {}, u));
    }
  };
  expect_logits({.repetition_penalty = 2}, at::tensor({0.5, 1.0, -2.0, 0.5}));
  expect_logits({.presence_penalty = 0.5}, at::tensor({1.0, 1.5, -1.5, 0.5}));
  expect_logits({.frequency_penalty = 0.5}, at::tensor({1.0, 1.0, -1.5, 0.5}));
  expect_logits({.repetition_penalty = 2, .frequency_penalty = -0.5, .presence_penalty = 1},
                at::tensor({0.5, 1.0, -2.5, 0.5}));
}

// An overflow says so.
TEST(SampleToken, RefusesPenaltiesThatOverflow) {
  TokenCounts counts;
  counts.add_generated(0);
  EXPECT_THROW(sample_token(at::tensor({5.0, 1.0}), {.repetition_penalty = 1e-320}, counts, 0.5),
               Error);
}

// Each row of many, with settings of its own, is what it is alone; one that fails is by itself.
TEST(SampleTokens, AreWhatEachRowGivesAlone) {
  constexpr int64_t kRows = 70, kTokens = 37;
  const at::Tensor logits_TV =
      (at::arange(kRows * kTokens, at::kFloat) * 1.7).sin().view({kRows, kTokens}) * 4;
  logits_TV[66][3] = NAN;
  std::vector<GenerationSettings> settings(kRows);
  std::vector<TokenCounts> counts(kRows);
  std::vector<TokenChoice> choices;
  for (int64_t i = 0; i < kRows; ++i) {
    SamplingSettings& sampling = settings[i].sampling;
    sampling.temperature = static_cast<double>(i % 4) / 2;
    sampling.top_k = i % 3 == 0 ? 5 : 0;
    sampling.top_p = i % 5 == 0 ? 0.7 : 1;
    sampling.repetition_penalty = i % 2 == 0 ? 1.5 : 1;
    if (i % 7 == 0) sampling.logit_bias = {{1, -100.0}};
    settings[i].vocabulary = i % 6 == 0 ? kTokens - 9 : kTokens;
    settings[i].top_logprobs = i % 2 == 0 ? 3 : -1;
    if (i % 10 == 9) settings[i].ends = {0, 5, 9, 12, 20, 31};
    counts[i].add_prompt({2, static_cast<int32_t>(i % kTokens)});
    choices.push_back({&settings[i], &counts[i], static_cast<double>(i) / kRows});
  }
  const std::vector<ChosenToken> chosen = sample_tokens(logits_TV, choices);
  ASSERT_EQ(std::ssize(chosen), kRows);
  std::set<int32_t> different;
  for (int64_t i = 0; i < kRows; ++i) {
    if (i == 66) continue;
    const at::Tensor row = logits_TV[i];
    const int64_t alone = sample_token(row.narrow(0, 0, settings[i].vocabulary),
                                       settings[i].sampling, counts[i], choices[i].uniform);
    EXPECT_EQ(chosen[i].token, alone) << i;
    EXPECT_EQ(chosen[i].error, "");
    const auto& ends = settings[i].ends;
    EXPECT_EQ(chosen[i].ends, std::find(ends.begin(), ends.end(), alone) != ends.end());
    ASSERT_EQ(chosen[i].logprobs.has_value(), i % 2 == 0);
    if (i % 2 == 0) {
      const TokenLogprobs expected = token_logprobs(row, static_cast<int32_t>(alone), 3);
      EXPECT_EQ(chosen[i].logprobs->chosen, expected.chosen);
      EXPECT_EQ(chosen[i].logprobs->top, expected.top);
    }
    different.insert(chosen[i].token);
  }
  EXPECT_GT(different.size(), 5u);
  EXPECT_EQ(chosen[66].token, -1);
  EXPECT_NE(chosen[66].error.find("not finite"), std::string::npos);
}

TEST(SampleToken, ZeroTemperatureTakesTheFirstOfTheMostLikely) {
  const at::Tensor tied = at::tensor({1.0, 3.0, 3.0, 2.0});
  for (const double u : {0.0, 0.5, 0.999})
    EXPECT_EQ(sample_token(tied, {.temperature = 0}, {}, u), 1);
}

TEST(SampleToken, TinyTemperaturesDoNotOverflow) {
  for (const double tiny : {1e-300, std::numeric_limits<double>::denorm_min()}) {
    EXPECT_EQ(sample_token(logits(), {.temperature = tiny}, {}, 0.999), 1);
  }
}

TEST(SampleToken, ImpossibleTokensAreNeverDrawn) {
  const double never = -std::numeric_limits<double>::infinity();
  expect_near(frequencies(at::tensor({never, 0.0, never, 0.0}), {}), {0, 0.5, 0, 0.5});
}

TEST(SampleToken, RefusesLogitsThatAreNotNumbers) {
  EXPECT_THROW(sample_token(at::tensor({0.0, NAN}), {}, {}, 0.5), Error);
  EXPECT_THROW(sample_token(at::tensor({0.0, INFINITY}), {.temperature = 0}, {}, 0.5), Error);
  EXPECT_THROW(sample_token(at::tensor({-INFINITY, -INFINITY}), {}, {}, 0.5), Error);
}

TEST(TokenLogprobs, AreThoseOfTheModel) {
  const at::Tensor logits = at::randn({300}, at::kDouble) * 3;
  const at::Tensor expected = logits.log_softmax(0);
  const auto [values, ids] = expected.sort(0, /*descending=*/true);
  for (const int64_t top : {0, 1, 20, 300, 999}) {
    const TokenLogprobs found = token_logprobs(logits, 7, top);
    EXPECT_NEAR(found.chosen, expected[7].item<double>(), 1e-12);
    ASSERT_EQ(std::ssize(found.top), std::min<int64_t>(top, 300));
    for (size_t i = 0; i < found.top.size(); ++i) {
      EXPECT_EQ(found.top[i].id, ids[i].item<int64_t>());
      EXPECT_NEAR(found.top[i].logprob, values[i].item<double>(), 1e-12);
    }
  }
}

TEST(TokenLogprobs, RankEqualsById) {
  const double half = -std::log(2.0), none = -std::numeric_limits<double>::infinity();
  const TokenLogprobs found = token_logprobs(at::tensor({none, 1e4, none, 1e4}), 2, 4);
  EXPECT_EQ(found.chosen, none);
  EXPECT_EQ(found.top, (std::vector<TokenLogprob>{{1, half}, {3, half}, {0, none}, {2, none}}));
}

TEST(TokenLogprobs, RefuseWhatHasNone) {
  EXPECT_THROW(token_logprobs(logits(), 4, 0), Error);
  EXPECT_THROW(token_logprobs(logits(), -1, 0), Error);
  EXPECT_THROW(token_logprobs(at::tensor({0.0, NAN}), 0, 0), Error);
}

TEST(SamplingSettings, AreChecked) {
  EXPECT_NO_THROW(check(SamplingSettings{}));
  const auto refused = [](const SamplingSettings& settings, const std::string& name) {
    const std::string said = message_of<UsageError>([&] { check(settings); });
    EXPECT_TRUE(said.starts_with(name + ": expected")) << said;
  };
  refused({.logit_bias = {{-1, 0.0}}}, "logit-bias");
  refused({.logit_bias = {{1, NAN}}}, "logit-bias");
  refused({.logit_bias = {{1, 100.5}}}, "logit-bias");
  for (const double wrong :
       {0.0, -1.0, 0.009, 101.0, static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
    refused({.repetition_penalty = wrong}, "repetition-penalty");
  }
  for (const double wrong : {-2.1, 2.1, static_cast<double>(NAN)}) {
    refused({.frequency_penalty = wrong}, "frequency-penalty");
    refused({.presence_penalty = wrong}, "presence-penalty");
  }
  refused({.temperature = -0.1}, "temperature");
  refused({.temperature = NAN}, "temperature");
  refused({.top_k = -1}, "top-k");
  refused({.top_p = 0}, "top-p");
  refused({.top_p = 1.1}, "top-p");
  refused({.min_p = -0.1}, "min-p");
  refused({.min_p = 1.1}, "min-p");
  refused({.min_p = NAN}, "min-p");
}

TEST(SamplingSettings, BiasOnlyWhatTheVocabularyHas) {
  EXPECT_NO_THROW(check_logit_bias({.logit_bias = {{4, 1.0}}}, 5));
  EXPECT_THROW(check_logit_bias({.logit_bias = {{5, 1.0}}}, 5), UsageError);
}

}  // namespace
}  // namespace attnres::sampling_test
