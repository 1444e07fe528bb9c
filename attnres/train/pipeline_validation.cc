#include "attnres/train/pipeline_validation.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "attnres/data/evaluation_batches.h"
#include "attnres/infer/sampling.h"
#include "attnres/model/magnitudes.h"
#include "attnres/support/random.h"
#include "attnres/train/validation.h"

namespace attnres {
namespace {

constexpr int32_t kEnd = -1;  // in the place of a token

// One number of a rank, to all.
int64_t broadcast_number(Communicator& ranks, int64_t number, int root) {
  const at::Tensor word = at::empty({1}, at::kLong);
  *word.mutable_data_ptr<int64_t>() = number;
  ranks.broadcast(word, root, Traffic::number);
  return word.item<int64_t>();
}

}  // namespace

PipelineValidation::PipelineValidation(const ParallelPlace& place, const Transformer& part,
                                       std::vector<int32_t> tokens, int32_t end_of_document)
    : place_(place),
      part_(part),
      tokens_(std::move(tokens)),
      end_of_document_(end_of_document),
      ranks_(place.pipeline_ranks->split(0)),
      pipeline_(part, place.plan, *ranks_) {}

double PipelineValidation::loss() {
  const TrainConfig& train = place_.recipe.train;
  const int64_t taken = evaluated_tokens(std::ssize(tokens_), train.context, train.eval_tokens);
  const std::vector<int32_t> stream(tokens_.begin(), tokens_.begin() + taken);
  const EvaluationBatches batches(stream, train.context, train.batch_size / train.accumulate);
  const int64_t replicas = place_.recipe.parallel.data;
  const auto at_once = static_cast<size_t>(train.accumulate / replicas);
  LossNumbers sums;
  std::vector<Batch> under_way;
  for (int64_t i = place_.replica(); i < batches.size(); i += replicas) {
    under_way.push_back(batches[i]);
    if (under_way.size() < at_once && i + replicas < batches.size()) continue;
    const LossNumbers numbers = pipeline_.forward(under_way);
    sums.loss += numbers.loss;
    sums.targets += numbers.targets;
    under_way.clear();
  }
  const at::Tensor both = at::zeros({2}, at::kDouble);
  double* number = both.mutable_data_ptr<double>();
  number[0] = sums.loss;
  number[1] = static_cast<double>(sums.targets);
  place_.world.all_reduce_sum(both, Traffic::number);
  const double loss = number[0] / number[1];
  require_finite_loss(loss);
  return loss;
}

ProbeReading PipelineValidation::probe() {
  Json part = Json::object();
  if (place_.replica() == 0) {
    const Batch batch = EvaluationBatches(tokens_, place_.recipe.train.context, kProbeWindows)[0];
    ProbeObserver seen(part_);
    const at::AutoGradMode recording(true);
    ExpertLoads loads;
    pipeline_.forward_backward({batch}, {.observer = &seen, .expert_loads = &loads});
    clear_gradients(part_);
    // The loss is a sum.
    part = seen.part(loads, batch.inputs_BT.numel(), static_cast<double>(batch.targets_BT.numel()));
  }
  std::vector<Json> parts;
  for (const std::string& text : gather_texts(place_.world, part.dump())) {
    if (const Json json = Json::parse(text); !json.empty()) parts.push_back(json);
  }
  return reading_of(parts);
}

std::vector<int32_t> PipelineValidation::sample() {
  const TrainConfig& train = place_.recipe.train;
  std::vector<int32_t> tokens = sample_prompt(tokens_, train);
  const size_t prompt = tokens.size();
  const auto most = static_cast<size_t>(
      std::min<int64_t>(std::ssize(tokens) + train.sample_tokens, train.context));
  while (tokens.size() < most) {
    const int32_t token = next_token(tokens, tokens.size() - prompt);
    if (token == kEnd) break;
    tokens.push_back(token);
  }
  return {tokens.begin() + static_cast<int64_t>(prompt), tokens.end()};
}

// The first replica's last rank chooses.
int32_t PipelineValidation::next_token(const std::vector<int32_t>& tokens, size_t generated) {
  int64_t token = kEnd;
  if (place_.replica() == 0) {
    const at::Tensor inputs = at::empty({1, std::ssize(tokens)}, at::kLong);
    std::copy(tokens.begin(), tokens.end(), inputs.mutable_data_ptr<int64_t>());
    const at::Tensor output_TD = pipeline_.output(inputs);
    if (place_.has_output()) {
      const GenerationSettings settings = sample_settings(place_.recipe.train, end_of_document_);
      const at::NoGradGuard not_recording;
      const at::Tensor logits_V = part_.logits(output_TD[-1]);
      // As an engine chooses, without penalties.
      const double uniform =
          RandomStream(settings.sampling.seed, "generate").uniform(static_cast<int64_t>(generated));
      token = sample_token(logits_V, settings.sampling, TokenCounts(), uniform);
      if (token == end_of_document_) token = kEnd;
    }
  }
  const int chooser = place_.plan.size.rank_of(place_.plan.size.stages() - 1);
  return static_cast<int32_t>(broadcast_number(place_.world, token, chooser));
}

}  // namespace attnres
