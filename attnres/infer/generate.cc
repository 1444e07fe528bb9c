#include "attnres/infer/generate.h"

#include <algorithm>

#include "attnres/support/error.h"

namespace attnres {

Generation generate(const InferenceModel& model, const std::vector<int32_t>& prompt,
                    int64_t context, const GenerationSettings& settings,
                    const std::function<bool(int32_t)>& on_token) {
  require_usage(settings.max_tokens >= 0, "max_tokens: expected 0 or more, got {}",
                settings.max_tokens);
  const int64_t most = std::ssize(prompt) + std::max<int64_t>(settings.max_tokens, 1);
  Engine engine(model, {.context = std::max<int64_t>(std::min(context, most), 2),
                        .sequences = 1,
                        .share_prefixes = false});
  engine.submit({prompt, settings});
  Generation result;
  while (!engine.idle()) {
    for (RequestUpdate& update : engine.step()) {
      if (update.stopped) result.reason = *update.stopped;
      require(result.reason != StopReason::failed, "{}", update.error);
      if (update.logprobs) result.logprobs.push_back(std::move(*update.logprobs));
      if (!update.token) continue;
      result.tokens.push_back(*update.token);
      if (on_token && !on_token(*update.token)) {
        result.reason = StopReason::stop_string;
        return result;
      }
    }
  }
  return result;
}

}  // namespace attnres
