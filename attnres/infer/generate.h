// Continuing one sequence.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "attnres/infer/engine.h"
#include "attnres/infer/inference_model.h"

namespace attnres {

struct Generation {
  std::vector<int32_t> tokens;          // without the prompt and the end of document
  std::vector<TokenLogprobs> logprobs;  // of each token, where they are asked for
  StopReason reason = StopReason::max_tokens;
};

// An engine with one request, of at most `context` tokens of prompt and continuation. `on_token`
// sees each token as it comes and says whether to go on; it may be empty. Throws as Engine::submit,
// and Error where the request fails.
Generation generate(const InferenceModel& model, const std::vector<int32_t>& prompt,
                    int64_t context, const GenerationSettings& settings,
                    const std::function<bool(int32_t)>& on_token = {});

}  // namespace attnres
