#include "attnres/study/study_plan.h"

#include <map>

#include "attnres/support/machine.h"

namespace attnres {

std::vector<RunPlan> plan_costs(const std::vector<StudyRun>& runs, int threads) {
  std::map<std::string, MachineSpeed> speeds;  // by precision
  const double copy = measure_copy(threads) * 1e9;
  const auto speed_of = [&](const TrainConfig& train) {
    const auto [speed, is_new] = speeds.try_emplace(train.precision);
    if (is_new) {
      speed->second = {.matmul = measure_matmul(threads, precision_of(train).activations),
                       .copy = copy};
    }
    return speed->second;
  };
  std::vector<RunPlan> plans;
  for (const StudyRun& run : runs) {
    const TrainConfig& train = run.recipe.train;
    const Estimate step = estimate(run.recipe, run.recipe.tokenizer.vocab_size, speed_of(train));
    const auto steps = static_cast<double>(train.steps);
    plans.push_back({.steps = train.steps,
                     .tokens = train.steps * train.batch_size * train.context,
                     .flops = steps * step.flops_per_step,
                     .seconds = steps * step.seconds_per_step,
                     .bytes = step.bytes,
                     .disk_bytes = step.disk_bytes});
  }
  return plans;
}

}  // namespace attnres
