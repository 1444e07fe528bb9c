// A model in training, looked at with its validation text.
#pragma once

#include "attnres/data/evaluation_batches.h"
#include "attnres/model/transformer.h"
#include "attnres/support/json.h"
#include "attnres/train/probe.h"
#include "attnres/train/run_text.h"

namespace attnres {

class Validation {
 public:
  // The text must outlive this. Throws Error when there is not enough to validate on, or nothing of
  // it counts.
  Validation(const RunText& text, const TrainConfig& config);

  // Mean negative log-likelihood of the text's first eval_tokens, those that count, nats per token.
  // Throws Diverged when it is not finite.
  double loss(const Transformer& model) const;
  ProbeReading probe(const Transformer& model) const;
  // How the model goes on with the text's beginning: {prompt, text}.
  Json sample(const Transformer& model) const;

 private:
  const RunText& text_;
  TrainConfig config_;
  Batch probed_;
};

}  // namespace attnres
