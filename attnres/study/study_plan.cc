#include "attnres/study/study_plan.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "attnres/support/machine.h"

namespace attnres {
namespace {

// The machine's, measured once for each precision.
class Speeds {
 public:
  Speeds(int threads, bool measure) : threads_(threads), measure_(measure) {}

  MachineSpeed of(const TrainConfig& train) {
    if (!measure_) return {.matmul = 1, .copy = 1};
    if (copy_ == 0) copy_ = measure_copy(threads_) * 1e9;
    const auto [speed, is_new] = speeds_.try_emplace(train.precision);
    if (is_new) {
      speed->second = {.matmul = measure_matmul(threads_, precision_of(train).activations),
                       .copy = copy_};
    }
    return speed->second;
  }

 private:
  int threads_;
  bool measure_;
  double copy_ = 0;
  std::map<std::string, MachineSpeed> speeds_;  // by precision
};

// Equal for runs whose steps take the same.
std::string what_costs(const Recipe& recipe) {
  Json json = recipe_to_json(recipe);
  json.erase("name");
  for (const char* key : {"seed", "steps", "learning_rate", "warmup"}) json["train"].erase(key);
  return json.dump();
}

}  // namespace

std::vector<RunPlan> plan_costs(const std::vector<StudyRun>& runs, int threads, bool measure) {
  Speeds speeds(threads, measure);
  std::map<std::string, Estimate> known;
  std::vector<RunPlan> plans;
  for (const StudyRun& run : runs) {
    const TrainConfig& train = run.recipe.train;
    const auto [step, is_new] = known.try_emplace(what_costs(run.recipe));
    if (is_new) {
      step->second = estimate(run.recipe, run.recipe.tokenizer.vocab_size, speeds.of(train));
    }
    const Estimate& cost = step->second;
    const auto steps = static_cast<double>(train.steps);
    plans.push_back({.parameters = cost.parameters,
                     .steps = train.steps,
                     .tokens = train.steps * train.batch_size * train.context,
                     .flops = steps * cost.flops_per_step,
                     .seconds = measure ? run_seconds(train, cost) : NAN,
                     .bytes = cost.bytes,
                     .disk_bytes = cost.disk_bytes});
  }
  return plans;
}

int runs_side_by_side(int jobs, int threads) {
  return std::min(jobs, std::max(describe_machine().cores / threads, 1));
}

}  // namespace attnres
