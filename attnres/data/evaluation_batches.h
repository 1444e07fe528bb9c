// A stream of tokens cut into what evaluation scores.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "attnres/model/batch.h"

namespace attnres {

// The whole stream in windows of `context` tokens that do not overlap. The first token of each has
// no context and is not scored: a window of C tokens gives a row of T = C - 1. The last window may
// be short and then has a batch of its own; a single token left over is dropped.
class EvaluationBatches {
 public:
  // The stream must outlive this. Throws Error when it has fewer than two tokens.
  EvaluationBatches(const std::vector<int32_t>& tokens, int64_t context, int64_t batch_size);

  int64_t size() const;  // batches
  Batch operator[](int64_t i) const;
  int64_t scored_tokens() const;  // over all batches

 private:
  const std::vector<int32_t>& tokens_;
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
