#include "attnres/train/validation.h"

#include <ATen/ops/max.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "attnres/infer/evaluate.h"
#include "attnres/infer/generate.h"
#include "attnres/train/training_step.h"

namespace attnres {
namespace {

constexpr int64_t kPromptTokens = 32;  // of samples

// The first windows of which something is scored.
Batch probed_windows(const EvaluationBatches& batches) {
  for (int64_t i = 0; i < batches.size(); ++i) {
    if (Batch batch = batches[i]; batch.targets_BT.max().item<int64_t>() >= 0) return batch;
  }
  return batches[0];
}

}  // namespace

Validation::Validation(const RunText& text, const TrainConfig& config)
    : text_(text),
      config_(config),
      probed_(probed_windows({text.validation, config.context, kProbeWindows})) {
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
  const double loss = evaluate(model, *text_.tokenizer, text_.validation,
                               {.context = config_.context, .max_tokens = config_.eval_tokens})
                          .loss;
  if (!std::isfinite(loss)) throw Diverged(fmt::format("the validation loss is {}", loss));
  return loss;
}

ProbeReading Validation::probe(const Transformer& model) const {
  return attnres::probe(model, probed_);
}

Json Validation::sample(const Transformer& model) const {
  const auto& tokens = text_.validation.ids;
  const int64_t length =
      std::min<int64_t>({kPromptTokens, config_.context / 2, static_cast<int64_t>(tokens.size())});
  const std::vector<int32_t> prompt(tokens.begin(), tokens.begin() + length);
  GenerationSettings settings;
  settings.max_tokens = config_.sample_tokens;
  settings.ends = {text_.tokenizer->end_of_document()};
  settings.vocabulary = text_.tokenizer->vocab_size();
  settings.sampling.seed = static_cast<uint64_t>(config_.seed);
  const Generation generation = generate(model, prompt, config_.context, settings);
  return {{"prompt", text_.tokenizer->decode(prompt)},
          {"text", text_.tokenizer->decode(generation.tokens)}};
}

}  // namespace attnres
