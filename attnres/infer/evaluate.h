// How well a model predicts a text.
#pragma once

#include <cstdint>
#include <functional>

#include "attnres/data/evaluation_batches.h"
#include "attnres/infer/inference_model.h"
#include "attnres/text/tokenizer.h"

namespace attnres {

// Tokens that are evaluated at once: enough for efficient matrix products.
inline constexpr int64_t kEvaluationTokensABatch = 4096;

struct EvaluationSettings {
  int64_t context = 0;     // tokens a window; at least 2
  int64_t max_tokens = 0;  // only the first tokens of the stream, in whole windows; 0 for all
  // In scored tokens, before the first batch and after each; may be empty.
  std::function<void(int64_t done, int64_t total)> on_progress = {};
};

// What is evaluated of a stream.
EvaluationTokens first_windows(const EvaluationTokens& tokens, int64_t context, int64_t max_tokens);

struct Evaluation {
  double loss = 0;           // mean negative log-likelihood, nats a token
  double perplexity = 0;     // exp(loss)
  double bits_per_byte = 0;  // all nats / ln 2 / bytes of the scored tokens' text
  int64_t tokens = 0;        // scored
};

// Scores a stream in windows of `context` tokens that do not overlap; the first token of each has
// no context and is not scored, nor are those that do not count (see EvaluationBatches). Sums in
// float64, in the stream's order.
// For byte tokens bits_per_byte is loss / ln 2; it can be compared between tokenizers, where
// tokens without text (the end of a document) cost nats and count no byte.
// Throws Error when the stream has fewer than two tokens, one outside the model's vocabulary, or
// none to score.
Evaluation evaluate(const InferenceModel& model, const Tokenizer& tokenizer,
                    const EvaluationTokens& tokens, const EvaluationSettings& settings);

}  // namespace attnres
