// How sequences are continued, and what is known of their tokens. No tensor library.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace attnres {

class TokenConstraint;

struct EngineSettings {
  int64_t context = 0;        // most tokens of a sequence, prompt and continuation
  int64_t sequences = 8;      // that are computed at once; more requests wait
  int64_t tokens = 0;         // that are kept of all; 0: sequences * context, or what fits
  int64_t step_tokens = 512;  // computed in a step at most
  bool share_prefixes = true;
  // Computes every sequence by itself, in pieces that depend on nothing else, and shares no
  // prefixes.
  bool deterministic = false;
};

struct EngineCounts {
  int64_t queued = 0, running = 0;  // requests
  int64_t held = 0;                 // sequences that have ended, for prompts that begin as they do
  int64_t tokens = 0, free_tokens = 0;  // that there is room for; of these, not in use
  // Sums over all requests so far: the prompts' tokens that were computed, those that another
  // sequence had computed, and the tokens that were chosen.
  int64_t prompt_tokens = 0, shared_tokens = 0, generated_tokens = 0;
};

// In the order in which they are applied, which is that of Hugging Face's transformers. (llama.cpp
// divides by the temperature last.)
struct SamplingSettings {
  // Added to the logits of these tokens; -100 or less: never this token.
  std::map<int32_t, double> logit_bias = {};
  // Divides a positive logit of every token of the prompt and the continuation, and multiplies a
  // negative one: less likely above 1.
  double repetition_penalty = 1;
  // The logit of every token of the continuation is lessened by presence_penalty +
  // frequency_penalty * (how often it came there).
  double frequency_penalty = 0;
  double presence_penalty = 0;
  double temperature = 1;  // logits are divided by it; 0 takes the most likely token
  int64_t top_k = 0;       // only the k most likely tokens; 0 for all
  double top_p = 1;        // of these, only the fewest most likely that hold this probability
  double min_p = 0;        // only tokens that are at least this times as likely as the likeliest
  uint64_t seed = 1;       // of the uniform numbers: equal seeds give equal continuations
};

struct GenerationSettings {
  SamplingSettings sampling = {};
  int64_t max_tokens = 200;
  int64_t min_tokens = 0;          // before these it ends only where its constraint does
  std::vector<int64_t> ends = {};  // stops before any of these tokens
  int64_t vocabulary = 0;          // takes tokens below this; 0 for all of the model's
  int64_t top_logprobs = -1;       // log-probabilities: of each token and of so many likeliest
  int64_t prompt_logprobs = -1;    // the same of the prompt's tokens but the first; -1: none
  bool depth_weights = false;      // of every token that is read, the prompt's too
  bool mean_hidden = false;        // of the prompt's tokens, as the head reads them
  // What the continuation has to be (TextEngine::constraint); null: anything. It ends where it is
  // complete, by one of `ends` or because nothing else may come.
  std::shared_ptr<const TokenConstraint> constraint = {};
};

struct TokenLogprob {
  int32_t id = 0;
  double logprob = 0;  // in nats

  bool operator==(const TokenLogprob&) const = default;
};

struct TokenLogprobs {
  double chosen = 0;              // of the token itself
  std::vector<TokenLogprob> top;  // of the most likely tokens, the likeliest first, equals by id
};

// Where tokens of a sequence look: softmax weights over depth, of the pass that read the token.
struct TokensDepthWeights {
  int64_t first = 0;  // the first token's place in prompt and continuation
  // [tokens][sites][sources]; of the sites that have weights, in the model's order.
  std::vector<std::vector<std::vector<float>>> weights = {};
};

// `stop_string`: whoever reads the tokens said so. `failed`: an error says why.
enum class StopReason { end_of_document, max_tokens, context, stop_string, failed };

// What a step gave a request.
struct RequestUpdate {
  int64_t request = 0;
  std::optional<int32_t> token = {};           // that it goes on with
  std::optional<TokenLogprobs> logprobs = {};  // of the token, where they were asked for
  // Once, where they were asked for: of the prompt's second token to its last.
  std::vector<TokenLogprobs> prompt_logprobs = {};
  int64_t shared_tokens = 0;  // of the prompt, that another sequence had computed
  // Where they were asked for: of the tokens that were read since the last update, the first of
  // which has the whole prompt's. The newest token is read in the next step, the last one not at
  // all.
  TokensDepthWeights depth = {};
  std::vector<float> mean_hidden = {};     // [D], once, where it was asked for
  std::optional<StopReason> stopped = {};  // nothing comes after this
  std::string error = {};
};

}  // namespace attnres
