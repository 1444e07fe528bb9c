// A model in training, looked at with its validation text.
#pragma once

#include <vector>

#include "attnres/data/evaluation_batches.h"
#include "attnres/infer/generation_settings.h"
#include "attnres/model/transformer.h"
#include "attnres/support/json.h"
#include "attnres/train/step/probe.h"
#include "attnres/train/text/run_text.h"

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

// The parts of these, for processes that look together (pipeline_validation.h).

// Those of the text's first tokens that Validation looks at, and of these what it probes with: the
// first windows of which something counts.
EvaluationTokens looked_at(const EvaluationTokens& tokens, const TrainConfig& config);
Batch probed_windows(const EvaluationTokens& tokens, const TrainConfig& config);
// Throws Diverged unless the loss is finite.
void require_finite_loss(double loss);
std::vector<int32_t> sample_prompt(const std::vector<int32_t>& tokens, const TrainConfig& config);
GenerationSettings sample_settings(const TrainConfig& config, const Vocabulary& vocabulary);
Json sample_line(const Tokenizer& tokenizer, const std::vector<int32_t>& prompt,
                 const std::vector<int32_t>& continuation);

}  // namespace attnres
