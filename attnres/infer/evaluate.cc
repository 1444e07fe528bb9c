#include "attnres/infer/evaluate.h"

#include <ATen/ops/sum.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "attnres/data/evaluation_batches.h"
#include "attnres/support/error.h"

namespace attnres {
Evaluation evaluate(const Transformer& model, const Tokenizer& tokenizer,
                    const std::vector<int32_t>& tokens, const EvaluationSettings& settings) {
  const int64_t context = settings.context;
  require_usage(context >= 2, "context: an evaluation window needs at least 2 tokens, got {}",
                context);
  const int64_t taken = evaluated_tokens(std::ssize(tokens), context, settings.max_tokens);
  const std::vector<int32_t> stream(tokens.begin(), tokens.begin() + taken);
  const EvaluationBatches batches(stream, context,
                                  std::max<int64_t>(kEvaluationTokensABatch / context, 1));

  Evaluation result;
  double nats = 0;
  int64_t bytes = 0;
  const auto show_progress = [&] {
    if (settings.on_progress) settings.on_progress(result.tokens, batches.scored_tokens());
  };
  show_progress();
  for (int64_t i = 0; i < batches.size(); ++i) {
    const Batch batch = batches[i];
    nats -=
        model.log_probabilities(batch.inputs_BT, batch.targets_BT).sum(at::kDouble).item<double>();
    const int64_t* targets = batch.targets_BT.const_data_ptr<int64_t>();
    for (int64_t t = 0; t < batch.targets_BT.numel(); ++t) {
      bytes += static_cast<int64_t>(tokenizer.token_text(static_cast<int32_t>(targets[t])).size());
    }
    result.tokens += batch.targets_BT.numel();
    show_progress();
  }
  result.loss = nats / static_cast<double>(result.tokens);
  result.perplexity = std::exp(result.loss);
  result.bits_per_byte = nats / std::numbers::ln2 / static_cast<double>(bytes);
  return result;
}

}  // namespace attnres
