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
  require_finite_loss(loss);
  return loss;
}

ProbeReading Validation::probe(const Transformer& model) const {
  return attnres::probe(model, probed_[0]);
}

Json Validation::sample(const Transformer& model) const {
  const std::vector<int32_t> prompt = sample_prompt(text_.validation, config_);
  const Generation generation = generate(
      model, prompt, config_.context, sample_settings(config_, text_.tokenizer->end_of_document()));
  return sample_line(*text_.tokenizer, prompt, generation.tokens);
}

int64_t looked_at(int64_t tokens, const TrainConfig& config) {
  const int64_t evaluated = evaluated_tokens(tokens, config.context, config.eval_tokens);
  return std::min(tokens, std::max(evaluated, kProbeWindows * config.context));
}

void require_finite_loss(double loss) {
  if (!std::isfinite(loss)) throw Diverged(fmt::format("the validation loss is {}", loss));
}

std::vector<int32_t> sample_prompt(const std::vector<int32_t>& tokens, const TrainConfig& config) {
  const int64_t length = std::min<int64_t>({kPromptTokens, config.context / 2, std::ssize(tokens)});
  return {tokens.begin(), tokens.begin() + length};
}

GenerationSettings sample_settings(const TrainConfig& config, int32_t end_of_document) {
  GenerationSettings settings;
  settings.max_tokens = config.sample_tokens;
  settings.ends = {end_of_document};
  settings.sampling.seed = static_cast<uint64_t>(config.seed);
  return settings;
}

Json sample_line(const Tokenizer& tokenizer, const std::vector<int32_t>& prompt,
                 const std::vector<int32_t>& continuation) {
  return {{"prompt", tokenizer.decode(prompt)}, {"text", tokenizer.decode(continuation)}};
}

}  // namespace attnres
