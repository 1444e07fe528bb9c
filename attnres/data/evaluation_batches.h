// A stream of tokens, and what evaluation scores of it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "attnres/data/training_tokens.h"
#include "attnres/model/batch.h"

namespace attnres {

struct EvaluationTokens {
  std::vector<int32_t> ids;
  // Whether each counts, as what a user says in a conversation does not; empty: all do.
  std::vector<bool> counts = {};

  bool counts_at(int64_t i) const { return counts.empty() || counts[i]; }
  std::vector<int32_t> counted() const;
  void append(const EvaluationTokens& more);
  EvaluationTokens first(int64_t count) const;
};

// `count` tokens from `first` on, of which those that are targets count. Throws as
// TrainingTokens::read.
EvaluationTokens read_to_score(const TrainingTokens& tokens, int64_t first, int64_t count,
                               int64_t vocab_size);

// A stream of documents, which end after those of its tokens that `ends` says, laid out for windows
// of `context` tokens so that each document and each window begins with `before`, which does not
// count. All other tokens then have a context, and are scored. Throws UsageError where a window
// has no room for more.
EvaluationTokens in_begun_windows(std::vector<int32_t> ids, const std::vector<int64_t>& ends,
                                  const std::vector<int32_t>& before, int64_t context);

// The whole stream in windows of `context` tokens that do not overlap. The first token of each has
// no context and is not scored: a window of C tokens gives a row of T = C - 1. The last window may
// be short and then has a batch of its own; a single token left over is dropped. Tokens that do not
// count are not scored either: they have targets of -100.
class EvaluationBatches {
 public:
  // Throws Error when the stream has fewer than two tokens.
  EvaluationBatches(EvaluationTokens tokens, int64_t context, int64_t batch_size);

  int64_t size() const;  // batches
  Batch operator[](int64_t i) const;
  int64_t scored_tokens() const;  // over all batches

 private:
  void fill_row(Batch& batch, int64_t row, int64_t first) const;

  EvaluationTokens tokens_;
  int64_t context_, batch_size_;
  int64_t full_windows_;
  int64_t last_window_;  // tokens of the short window; 0 if there is none
};

// How many tokens of a stream of `there` an evaluation takes that is limited to `most` tokens, in
// whole windows, and at least one; 0: not limited.
int64_t evaluated_tokens(int64_t there, int64_t context, int64_t most);

// Entropy of the token frequencies, -sum p ln p in nats: the loss of the best model without
// context. Throws Error on an empty stream or a token outside the vocabulary.
double unigram_entropy(const std::vector<int32_t>& tokens, int64_t vocab_size);

}  // namespace attnres
