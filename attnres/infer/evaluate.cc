#include "attnres/infer/evaluate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "attnres/infer/score.h"
#include "attnres/support/error.h"

namespace attnres {

EvaluationTokens first_windows(const EvaluationTokens& tokens, int64_t context,
                               int64_t max_tokens) {
  if (max_tokens == 0) return tokens;
  return tokens.first(std::max<int64_t>(max_tokens / context, 1) * context);
}

Evaluation evaluate(const InferenceModel& model, const Tokenizer& tokenizer,
                    const EvaluationTokens& tokens, const EvaluationSettings& settings) {
  const int64_t context = settings.context;
  require_usage(context >= 2, "context: an evaluation window needs at least 2 tokens, got {}",
                context);
  const EvaluationTokens evaluated = first_windows(tokens, context, settings.max_tokens);
  check_ids(model.transformer(), evaluated.ids);
  const EvaluationBatches batches(evaluated, context,
                                  std::max<int64_t>(kEvaluationTokensABatch / context, 1));
  const int64_t scored = batches.scored_tokens();
  require(scored > 0,
          "text to score: none of its tokens counts, as where all of them are questions; give text "
          "with answers");

  Evaluation result;
  double nats = 0;
  int64_t bytes = 0;
  const auto show_progress = [&] {
    if (settings.on_progress) settings.on_progress(result.tokens, scored);
  };
  show_progress();
  for (int64_t i = 0; i < batches.size(); ++i) {
    const Batch batch = batches[i];
    nats -=
        model.log_probabilities(batch.inputs_BT, batch.targets_BT).sum(at::kDouble).item<double>();
    const int64_t* targets = batch.targets_BT.const_data_ptr<int64_t>();
    for (int64_t t = 0; t < batch.targets_BT.numel(); ++t) {
      if (targets[t] < 0) continue;
      ++result.tokens;
      bytes += static_cast<int64_t>(tokenizer.token_text(static_cast<int32_t>(targets[t])).size());
    }
    show_progress();
  }
  result.loss = nats / static_cast<double>(result.tokens);
  result.perplexity = std::exp(result.loss);
  result.bits_per_byte = nats / std::numbers::ln2 / static_cast<double>(bytes);
  return result;
}

}  // namespace attnres
