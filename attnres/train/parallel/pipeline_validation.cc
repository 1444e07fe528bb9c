#include "attnres/train/parallel/pipeline_validation.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "attnres/infer/evaluate.h"
#include "attnres/infer/sampling.h"
#include "attnres/model/magnitudes.h"
#include "attnres/support/random.h"
#include "attnres/train/step/validation.h"

namespace attnres {
namespace {

constexpr int32_t kEnd = -1;  // in the place of a token

}  // namespace

PipelineValidation::PipelineValidation(const ParallelPlace& place, const Transformer& part,
                                       EvaluationTokens tokens, const Vocabulary& vocabulary)
    : place_(place),
      part_(part),
      tokens_(std::move(tokens)),
      vocabulary_(vocabulary),
      ranks_(place.ranks.pipeline().split(0)),
      pipeline_(part, place.plan, *ranks_) {}

double PipelineValidation::loss() {
  const TrainConfig& train = place_.recipe.train;
  const EvaluationBatches batches(first_windows(tokens_, train.context, train.eval_tokens),
                                  train.context, train.batch_size / train.accumulate);
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
  double numbers[] = {sums.loss, static_cast<double>(sums.targets)};
  sum_numbers(place_.world, numbers);
  const double loss = numbers[0] / numbers[1];
  require_finite_loss(loss);
  return loss;
}

ProbeReading PipelineValidation::probe() {
  Json own = Json::array();
  if (place_.replica() == 0) own = probe_part();
  std::vector<Json> parts;
  for (const std::string& text : gather_texts(place_.world, own.dump())) {
    for (const Json& part : Json::parse(text)) parts.push_back(part);
  }
  return reading_of(parts);
}

// What this process sees, window by window.
Json PipelineValidation::probe_part() {
  const TrainConfig& train = place_.recipe.train;
  const at::AutoGradMode recording(true);
  const Batch batch = probed_windows(tokens_, train);
  Json parts = Json::array();
  for (const Batch& window : windows_of(batch)) {
    ProbeObserver seen(part_);
    ExpertLoads loads;
    pipeline_.forward_backward(
        {window}, {.recompute = train.recompute, .observer = &seen, .expert_loads = &loads});
    clear_gradients(part_);
    const int64_t tokens = window.inputs_BT.numel();
    const int64_t own = rows_of_part(part_.parameters().part(), tokens).count;
    // The loss is a sum.
    parts.push_back(seen.part(loads, tokens, own, static_cast<double>(count_targets(batch))));
  }
  return parts;
}

std::vector<int32_t> PipelineValidation::sample() {
  const TrainConfig& train = place_.recipe.train;
  std::vector<int32_t> tokens = sample_prompt(tokens_.ids, train);
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

// The first replica's last rank chooses; of a tensor group the process that has the last token.
int32_t PipelineValidation::next_token(const std::vector<int32_t>& tokens, size_t generated) {
  const int64_t length = std::ssize(tokens);
  RankPlace last = {.replica = 0, .pipeline = place_.output_rank()};
  last.tensor = static_cast<int>(std::min(place_.recipe.parallel.tensor, length)) - 1;
  const int chooser = rank_at(last, place_.recipe.parallel);
  int64_t chosen[] = {kEnd};
  if (place_.replica() == 0) {
    const at::Tensor inputs = at::empty({1, length}, at::kLong);
    std::copy(tokens.begin(), tokens.end(), inputs.mutable_data_ptr<int64_t>());
    const at::Tensor output_TD = pipeline_.output(inputs);
    if (place_.world.rank() == chooser) {
      const GenerationSettings settings = sample_settings(place_.recipe.train, vocabulary_);
      const at::NoGradGuard not_recording;
      const at::Tensor logits_V = part_.logits(output_TD[-1]).narrow(0, 0, settings.vocabulary);
      // As an engine chooses, without penalties.
      const double uniform =
          RandomStream(settings.sampling.seed, "generate").uniform(static_cast<int64_t>(generated));
      const int32_t token = sample_token(logits_V, settings.sampling, TokenCounts(), uniform);
      if (token != vocabulary_.end_of_document) chosen[0] = token;
    }
  }
  broadcast_numbers(place_.world, chosen, chooser);
  return static_cast<int32_t>(chosen[0]);
}

}  // namespace attnres
