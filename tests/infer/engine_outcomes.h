// What comes of an engine's requests, and how far it is from what one pass gives.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "attnres/infer/engine.h"
#include "attnres/infer/inference_model.h"
#include "attnres/infer/score.h"
#include "tests/model/small_models.h"

namespace attnres::testing {

inline std::vector<int32_t> some_ids(int64_t count, uint64_t seed) {
  return as_vector(random_ids(1, count, seed));
}

// What came of a request.
struct Outcome {
  std::vector<int32_t> tokens = {};
  std::vector<TokenLogprobs> prompt_logprobs = {}, logprobs = {};
  int64_t shared = 0;
  std::optional<StopReason> stopped = {};
  std::string error = {};
};

using Outcomes = std::map<int64_t, Outcome>;

inline void take_step(Engine& engine, Outcomes& outcomes) {
  for (const RequestUpdate& update : engine.step()) {
    Outcome& outcome = outcomes[update.request];
    EXPECT_FALSE(outcome.stopped.has_value()) << "an update after the end";
    if (update.token) outcome.tokens.push_back(*update.token);
    if (update.logprobs) outcome.logprobs.push_back(*update.logprobs);
    if (!update.prompt_logprobs.empty()) outcome.prompt_logprobs = update.prompt_logprobs;
    outcome.shared = update.shared_tokens;
    outcome.stopped = update.stopped;
    outcome.error = update.error;
  }
}

inline Outcomes finish(Engine& engine, Outcomes outcomes = {}) {
  for (int steps = 0; !engine.idle(); ++steps) {
    EXPECT_LT(steps, 1000);
    take_step(engine, outcomes);
  }
  return outcomes;
}

inline GenerationRequest request_of(std::vector<int32_t> prompt, int64_t max_tokens,
                                    uint64_t seed = 1) {
  return {std::move(prompt),
          {.sampling = {.seed = seed}, .max_tokens = max_tokens, .top_logprobs = 0}};
}

inline std::vector<double> chosen(const std::vector<TokenLogprobs>& logprobs) {
  std::vector<double> numbers;
  for (const TokenLogprobs& of_token : logprobs) numbers.push_back(of_token.chosen);
  return numbers;
}

// The largest distance of an outcome's log-probabilities from those of one pass over all its
// tokens.
inline double error_of(const Transformer& model, const std::vector<int32_t>& prompt,
                       const Outcome& outcome) {
  std::vector<int32_t> all = prompt;
  all.insert(all.end(), outcome.tokens.begin(), outcome.tokens.end());
  const std::vector<double> expected = score_sequence(LocalModel(model), all, 1000);
  std::vector<double> got = chosen(outcome.prompt_logprobs);
  const std::vector<double> continued = chosen(outcome.logprobs);
  got.insert(got.end(), continued.begin(), continued.end());
  if (got.empty() || got.size() > expected.size()) return std::numeric_limits<double>::infinity();
  double largest = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    largest =
        std::max(largest, std::abs(got[got.size() - 1 - i] - expected[expected.size() - 1 - i]));
  }
  return largest;
}

}  // namespace attnres::testing
