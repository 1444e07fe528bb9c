// Continuing a sequence token by token, and scoring a given one.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "attnres/infer/sampling.h"
#include "attnres/model/transformer.h"

namespace attnres {

struct GenerationSettings {
  SamplingSettings sampling;
  int64_t max_tokens = 200;
  int64_t context = 0;        // most tokens of prompt and continuation together
  std::vector<int64_t> ends;  // stops before any of these tokens
  int64_t vocabulary = 0;     // takes tokens below this; 0 for all of the model's
  int64_t top_logprobs = -1;  // log-probabilities: of each token and of so many likeliest; -1: none
};

// `stop_string`: on_token said so.
enum class StopReason { end_of_document, max_tokens, context, stop_string };

struct Generation {
  std::vector<int32_t> tokens;          // without the prompt and the end of document
  std::vector<TokenLogprobs> logprobs;  // of each token, where they are asked for
  StopReason reason = StopReason::max_tokens;
};

// Throws Error on an id outside the model's vocabulary.
void check_ids(const Transformer& model, const std::vector<int32_t>& ids);

// Reads the prompt in one pass, then decodes one token at a time from a pool of one sequence.
// `on_token` sees each token as it comes and says whether to go on; it may be empty.
// Log-probabilities are those of the model's whole vocabulary.
// Throws UsageError on settings that `check` refuses, and Error when the prompt is empty, has an id
// outside the model's vocabulary, or leaves no room in the context: it is never cut.
Generation generate(const Transformer& model, const std::vector<int32_t>& prompt,
                    const GenerationSettings& settings,
                    const std::function<bool(int32_t)>& on_token = {});

// Throws Error unless ids can be scored: at least two, at most `context`, all in the vocabulary.
void check_sequence(const Transformer& model, const std::vector<int32_t>& ids, int64_t context);

// log p(ids[t] | ids[0 .. t-1]) for t = 1 and following, in nats: one number fewer than ids.
// Throws as check_sequence, and Error when a result is not finite.
std::vector<double> score_sequence(const Transformer& model, const std::vector<int32_t>& ids,
                                   int64_t context);

}  // namespace attnres
