#include "attnres/infer/generate.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "attnres/support/error.h"
#include "attnres/support/random.h"

namespace attnres {
namespace {

at::Tensor as_tensor(const std::vector<int32_t>& ids) {
  at::Tensor ids_T = at::empty({static_cast<int64_t>(ids.size())}, at::kLong);
  std::copy(ids.begin(), ids.end(), ids_T.mutable_data_ptr<int64_t>());
  return ids_T;
}

}  // namespace

void check_ids(const Transformer& model, const std::vector<int32_t>& ids) {
  for (const int32_t id : ids) {
    require(id >= 0 && id < model.vocab_size(),
            "token id {} is out of range: this model's vocabulary has ids 0 to {}", id,
            model.vocab_size() - 1);
  }
}

Generation generate(const Transformer& model, const std::vector<int32_t>& prompt,
                    const GenerationSettings& settings,
                    const std::function<bool(int32_t)>& on_token) {
  check(settings.sampling);
  require_usage(settings.max_tokens >= 0, "max_tokens: expected 0 or more, got {}",
                settings.max_tokens);
  const auto prompt_tokens = static_cast<int64_t>(prompt.size());
  require(prompt_tokens > 0, "generate: the prompt has no tokens");
  require(prompt_tokens < settings.context,
          "generate: the prompt has {} tokens, which leaves no room for more: this model's context "
          "is {} tokens; shorten the prompt",
          prompt_tokens, settings.context);
  check_ids(model, prompt);
  const int64_t vocabulary = settings.vocabulary > 0
                                 ? std::min(settings.vocabulary, model.vocab_size())
                                 : model.vocab_size();
  check_logit_bias(settings.sampling, vocabulary);

  const at::NoGradGuard no_grad;
  const int64_t most = std::min(settings.max_tokens, settings.context - prompt_tokens);
  const auto pool = model.make_pool({.tokens = prompt_tokens + most});
  const int64_t sequence = pool->add();
  const RandomStream random(settings.sampling.seed, "generate");
  TokenCounts counts;
  counts.add_prompt(prompt);
  Generation result;
  at::Tensor ids_T = as_tensor(prompt);
  while (static_cast<int64_t>(result.tokens.size()) < most) {
    const at::Tensor hidden_TD = model.hidden(ids_T, pool->append({{sequence, ids_T.numel()}}));
    const at::Tensor logits_V = model.logits(hidden_TD[-1]);
    const auto token =
        static_cast<int32_t>(sample_token(logits_V.narrow(0, 0, vocabulary), settings.sampling,
                                          counts, random.uniform(result.tokens.size())));
    if (std::find(settings.ends.begin(), settings.ends.end(), token) != settings.ends.end()) {
      result.reason = StopReason::end_of_document;
      return result;
    }
    result.tokens.push_back(token);
    counts.add_generated(token);
    if (settings.top_logprobs >= 0) {
      result.logprobs.push_back(token_logprobs(logits_V, token, settings.top_logprobs));
    }
    if (on_token && !on_token(token)) {
      result.reason = StopReason::stop_string;
      return result;
    }
    ids_T = as_tensor({token});
  }
  result.reason = most < settings.max_tokens ? StopReason::context : StopReason::max_tokens;
  return result;
}

void check_sequence(const Transformer& model, const std::vector<int32_t>& ids, int64_t context) {
  const auto length = static_cast<int64_t>(ids.size());
  require(length >= 2, "scoring needs at least 2 token ids, got {}", length);
  require(length <= context, "{} token ids are more than this model's context of {}", length,
          context);
  check_ids(model, ids);
}

std::vector<double> score_sequence(const Transformer& model, const std::vector<int32_t>& ids,
                                   int64_t context) {
  check_sequence(model, ids, context);
  const auto length = static_cast<int64_t>(ids.size());
  const at::Tensor ids_BT = as_tensor(ids).unsqueeze(0);
  const at::Tensor logprobs_T =
      model.log_probabilities(ids_BT.narrow(1, 0, length - 1), ids_BT.narrow(1, 1, length - 1))
          .to(at::kDouble)
          .view({-1})
          .contiguous();
  require(logprobs_T.isfinite().all().item<bool>(),
          "scoring: the model's log-probabilities are not finite; its weights are damaged, or "
          "training diverged");
  const double* data = logprobs_T.const_data_ptr<double>();
  return {data, data + logprobs_T.numel()};
}

}  // namespace attnres
