#include "attnres/train/validation.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "attnres/infer/evaluate.h"
#include "attnres/infer/generate.h"
#include "attnres/train/training_step.h"

namespace attnres {
namespace {

constexpr int64_t kPromptTokens = 32;  // of samples

}  // namespace

Validation::Validation(const RunText& text, const TrainConfig& config)
    : text_(text), config_(config), probed_(text.validation, config.context, kProbeWindows) {}

double Validation::loss(const Transformer& model) const {
  const double loss = evaluate(model, *text_.tokenizer, text_.validation,
                               {.context = config_.context, .max_tokens = config_.eval_tokens})
                          .loss;
  if (!std::isfinite(loss)) throw Diverged(fmt::format("the validation loss is {}", loss));
  return loss;
}

ProbeReading Validation::probe(const Transformer& model) const {
  return attnres::probe(model, probed_[0]);
}

Json Validation::sample(const Transformer& model) const {
  const auto& tokens = text_.validation;
  const int64_t length =
      std::min<int64_t>({kPromptTokens, config_.context / 2, static_cast<int64_t>(tokens.size())});
  const std::vector<int32_t> prompt(tokens.begin(), tokens.begin() + length);
  GenerationSettings settings;
  settings.max_tokens = config_.sample_tokens;
  settings.ends = {text_.tokenizer->end_of_document()};
  settings.sampling.seed = static_cast<uint64_t>(config_.seed);
  const Generation generation = generate(model, prompt, config_.context, settings);
  return {{"prompt", text_.tokenizer->decode(prompt)},
          {"text", text_.tokenizer->decode(generation.tokens)}};
}

}  // namespace attnres
