#include "attnres/infer/score.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>

#include "attnres/support/error.h"

namespace attnres {

void check_ids(const Transformer& model, const std::vector<int32_t>& ids) {
  for (const int32_t id : ids) {
    require(id >= 0 && id < model.vocab_size(),
            "token id {} is out of range: this model's vocabulary has ids 0 to {}", id,
            model.vocab_size() - 1);
  }
}

void check_sequence(const Transformer& model, const std::vector<int32_t>& ids, int64_t context) {
  const auto length = static_cast<int64_t>(ids.size());
  require(length >= 2, "scoring needs at least 2 token ids, got {}", length);
  require(length <= context, "{} token ids are more than this model's context of {}", length,
          context);
  check_ids(model, ids);
}

std::vector<double> score_sequence(const InferenceModel& model, const std::vector<int32_t>& ids,
                                   int64_t context) {
  check_sequence(model.transformer(), ids, context);
  const auto length = static_cast<int64_t>(ids.size());
  const at::Tensor ids_BT = at::tensor(ids, at::kLong).unsqueeze(0);
  const at::Tensor logprobs_T =
      model.log_probabilities(ids_BT.narrow(1, 0, length - 1), ids_BT.narrow(1, 1, length - 1))
          .to(at::kCPU, at::kDouble)
          .view({-1})
          .contiguous();
  require(logprobs_T.isfinite().all().item<bool>(),
          "scoring: the model's log-probabilities are not finite ({}); its weights are damaged, or "
          "training "
          "diverged",
          logprobs_T.isnan().any().item<bool>() ? "NaN, not a number" : "infinite");
  const double* data = logprobs_T.const_data_ptr<double>();
  return {data, data + logprobs_T.numel()};
}

}  // namespace attnres
