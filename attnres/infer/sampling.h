// Choosing the next token from its logits, and what the model thought of it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "attnres/grammar/token_constraint.h"
#include "attnres/infer/generation_settings.h"

namespace attnres {

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

// What is to be chosen of a row of logits: the next token of a sequence.
struct TokenChoice {
  const GenerationSettings* settings = nullptr;  // sampling, ends, vocabulary and top_logprobs
  const TokenCounts* counts = nullptr;
  double uniform = 0;
  bool may_end = true;                    // else none of the settings' ends
  ConstraintState* constraint = nullptr;  // where there is one; moves on by what is chosen
};
struct ChosenToken {
  int32_t token = -1;                          // without one the constraint allows the end alone
  bool ends = false;                           // it is one of the settings' ends, or none
  bool completes = false;                      // the constraint allows nothing but the end after it
  std::optional<TokenLogprobs> logprobs = {};  // of all logits; not of an end
  std::string error = {};                      // what choosing threw: there is no token
};
// Chooses from each row of logits [T, V], as sample_token from those of its vocabulary that its
// constraint allows; on all threads.
std::vector<ChosenToken> sample_tokens(const at::Tensor& logits_TV,
                                       const std::vector<TokenChoice>& choices);

// Log-probabilities of each row of logits [T, V] and its token, in the model's own distribution,
// log softmax(logits), whatever the settings of sampling are; in float64, on all threads. `top` is
// how many of the most likely, all of them if there are fewer. Throws Error as sample_token on the
// logits, and on a token without one.
std::vector<TokenLogprobs> token_logprobs(const at::Tensor& logits_TV,
                                          std::span<const int32_t> tokens, int64_t top);

}  // namespace attnres
