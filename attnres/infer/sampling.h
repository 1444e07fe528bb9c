// Choosing the next token from its logits, and what the model thought of it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

namespace attnres {

// In the order in which they are applied, which is that of Hugging Face's transformers. (llama.cpp
// divides by the temperature last.)
struct SamplingSettings {
  // Added to the logits of these tokens; -100 or less: never this token.
  std::map<int32_t, double> logit_bias = {};
  // Of every token of the prompt and the continuation, a positive logit is divided by this, and a
  // negative one multiplied: less likely above 1.
  double repetition_penalty = 1;
  // Of every token of the continuation, its logit is lessened by presence_penalty +
  // frequency_penalty * (how often it came there).
  double frequency_penalty = 0;
  double presence_penalty = 0;
  double temperature = 1;  // logits are divided by it; 0 takes the most likely token
  int64_t top_k = 0;       // only the k most likely tokens; 0 for all
  double top_p = 1;        // of these, only the fewest most likely that hold this probability
  double min_p = 0;        // only tokens that are at least this times as likely as the likeliest
  uint64_t seed = 1;       // of the uniform numbers: equal seeds give equal continuations
};

// Throws UsageError that begins with the setting, as in "top-p: ".
void check(const SamplingSettings& settings);

// Throws UsageError, "logit-bias: ", on a token that is not in the vocabulary.
void check_logit_bias(const SamplingSettings& settings, int64_t vocab_size);

// The tokens of one sequence so far, which penalties look at.
class TokenCounts {
 public:
  void add_prompt(const std::vector<int32_t>& ids);
  void add_generated(int32_t id);

  // Every token that the sequence has, and how often it was generated: 0 for those that only the
  // prompt has.
  const std::unordered_map<int32_t, int64_t>& generated() const { return generated_; }

 private:
  std::unordered_map<int32_t, int64_t> generated_;
};

// The token that a uniform number in [0, 1) picks. Equal logits rank by id, so the choice depends
// on nothing else. All in float64. The vocabulary is sorted only as far as the settings keep it.
// Throws Error when no logit is finite or one is not a number, when a bias is for a token without a
// logit, and when bias and penalties leave no finite logit. Counts of tokens without a logit do
// nothing.
int64_t sample_token(const at::Tensor& logits_V, const SamplingSettings& settings,
                     const TokenCounts& counts, double uniform);

struct TokenLogprob {
  int32_t id = 0;
  double logprob = 0;  // in nats

  bool operator==(const TokenLogprob&) const = default;
};

struct TokenLogprobs {
  double chosen = 0;              // of the token itself
  std::vector<TokenLogprob> top;  // of the most likely tokens, the likeliest first, equals by id
};

// Of the model's own distribution, log softmax(logits), whatever the settings of sampling are; in
// float64. `top` is how many of the most likely, all of them if there are fewer. Throws Error as
// sample_token on the logits, and on a token without one.
TokenLogprobs token_logprobs(const at::Tensor& logits_V, int64_t token, int64_t top);

}  // namespace attnres
