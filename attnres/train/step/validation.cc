#include "attnres/train/step/validation.h"

#include <ATen/ops/max.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "attnres/infer/evaluate.h"
#include "attnres/infer/generate.h"
#include "attnres/infer/inference_model.h"
#include "attnres/support/memory.h"
#include "attnres/train/step/training_step.h"

namespace attnres {
namespace {

constexpr int64_t kPromptTokens = 32;  // of samples

// The first of which something is scored.
int64_t probed_batch(const EvaluationBatches& batches) {
  for (int64_t i = 0; i < batches.size(); ++i) {
    if (batches[i].targets_BT.max().item<int64_t>() >= 0) return i;
  }
  return 0;
}

}  // namespace

Validation::Validation(const RunText& text, const TrainConfig& config)
    : text_(text), config_(config), probed_(probed_windows(text.validation, config)) {
  const EvaluationBatches scored(first_windows(text.validation, config.context, config.eval_tokens),
                                 config.context, /*batch_size=*/1);
  require(
      scored.scored_tokens() > 0,
      "validation text: none of the first {} tokens (train.eval_tokens) counts, as where all of "
      "them are questions; make train.eval_tokens larger, or give conversations with answers "
      "to validate on (--validation)",
      config.eval_tokens);
}

double Validation::loss(const Transformer& model) const {
  // Its tensors are of other sizes than a step's: neither keeps memory that the other needs.
  give_back_freed_memory();
  const double loss = evaluate(LocalModel(model), *text_.tokenizer, text_.validation,
                               {.context = config_.context, .max_tokens = config_.eval_tokens})
                          .loss;
  give_back_freed_memory();
  require_finite_loss(loss);
  return loss;
}

ProbeReading Validation::probe(const Transformer& model) const {
  return attnres::probe(model, probed_, config_.recompute);
}

Json Validation::sample(const Transformer& model) const {
  const std::vector<int32_t> prompt = sample_prompt(text_.validation.ids, config_);
  const Generation generation = generate(LocalModel(model), prompt, config_.context,
                                         sample_settings(config_, vocabulary_of(*text_.tokenizer)));
  return sample_line(*text_.tokenizer, prompt, generation.tokens);
}

Batch probed_windows(const EvaluationTokens& tokens, const TrainConfig& config) {
  const EvaluationBatches batches(tokens, config.context, kProbeWindows);
  return batches[probed_batch(batches)];
}

EvaluationTokens looked_at(const EvaluationTokens& tokens, const TrainConfig& config) {
  const EvaluationTokens evaluated = first_windows(tokens, config.context, config.eval_tokens);
  const int64_t probed = probed_batch({tokens, config.context, kProbeWindows}) + 1;
  return tokens.first(std::max(std::ssize(evaluated.ids), probed * kProbeWindows * config.context));
}

void require_finite_loss(double loss) {
  if (!std::isfinite(loss)) throw Diverged("the validation loss is " + describe_number(loss));
}

std::vector<int32_t> sample_prompt(const std::vector<int32_t>& tokens, const TrainConfig& config) {
  const int64_t length = std::min<int64_t>({kPromptTokens, config.context / 2, std::ssize(tokens)});
  return {tokens.begin(), tokens.begin() + length};
}

GenerationSettings sample_settings(const TrainConfig& config, const Vocabulary& vocabulary) {
  GenerationSettings settings;
  settings.max_tokens = config.sample_tokens;
  settings.ends = {vocabulary.end_of_document};
  settings.vocabulary = vocabulary.size;
  settings.sampling.seed = static_cast<uint64_t>(config.seed);
  return settings;
}

Json sample_line(const Tokenizer& tokenizer, const std::vector<int32_t>& prompt,
                 const std::vector<int32_t>& continuation) {
  return {{"prompt", tokenizer.decode(prompt)}, {"text", tokenizer.decode(continuation)}};
}

}  // namespace attnres
