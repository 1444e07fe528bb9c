#include "attnres/study/study_plan.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "attnres/support/machine.h"

namespace attnres {
namespace {

constexpr MachineSpeed kNoSpeed = {.matmul = 1, .copy = 1};

class MeasuredSpeeds {
 public:
  MeasuredSpeeds(int threads, const std::string& device) : threads_(threads), device_(device) {}

  MachineSpeed of(const Recipe& recipe) {
    const at::ScalarType dtype = precision_of(recipe.train).activations;
    double& matmul = products_[recipe.train.precision];
    if (!device_.is_cpu()) {
      if (copy_ == 0) copy_ = measure_copy(device_);
      if (matmul == 0) matmul = measure_matmul(device_, dtype);
      return {.matmul = matmul, .copy = copy_};
    }
    if (copy_ == 0) copy_ = measure_copy(threads_) * 1e9;
    if (matmul == 0) matmul = measure_matmul(threads_, dtype);
    const ModelConfig& model = recipe.model;
    double& mixing = mixing_[fmt::format("{} {} {} {}", model.depth_mixing.to_json().dump(),
                                         model.width, model.layers, model.heads)];
    if (mixing == 0) mixing = measure_mixing(model, threads_);
    return {.matmul = matmul, .copy = copy_, .mixing = mixing};
  }

 private:
  int threads_;
  at::Device device_;
  double copy_ = 0;
  std::map<std::string, double> products_, mixing_;  // by precision, and by what is mixed
};

// Equal for runs whose steps take the same.
std::string what_costs(const Recipe& recipe) {
  Json json = recipe_to_json(recipe);
  json.erase("name");
  for (const char* key : {"seed", "steps", "learning_rate", "warmup"}) json["train"].erase(key);
  return json.dump();
}

}  // namespace

SpeedOf measured_speeds(int threads, const std::string& device) {
  return [speeds = std::make_shared<MeasuredSpeeds>(threads, device)](const Recipe& recipe) {
    return speeds->of(recipe);
  };
}

std::vector<RunPlan> plan_costs(const std::vector<StudyRun>& runs, const SpeedOf& speed_of,
                                const std::string& device) {
  std::map<std::string, Estimate> known;
  std::vector<RunPlan> plans;
  for (const StudyRun& run : runs) {
    const TrainConfig& train = run.recipe.train;
    const auto [step, is_new] = known.try_emplace(what_costs(run.recipe));
    if (is_new) {
      const MachineSpeed speed = speed_of ? speed_of(run.recipe) : kNoSpeed;
      step->second =
          estimate(run.recipe, run.recipe.tokenizer.vocab_size, speed, at::Device(device));
    }
    const Estimate& cost = step->second;
    const auto steps = static_cast<double>(train.steps);
    plans.push_back({.parameters = cost.parameters,
                     .steps = train.steps,
                     .tokens = train.steps * train.batch_size * train.context,
                     .flops = steps * cost.flops_per_step,
                     .seconds = speed_of ? run_seconds(train, cost) : NAN,
                     .bytes = cost.bytes,
                     .disk_bytes = cost.disk_bytes});
  }
  return plans;
}

int runs_side_by_side(int jobs, int threads, const std::string& device) {
  if (device != "cpu") return 1;
  return std::min(jobs, std::max(describe_machine().cores / threads, 1));
}

}  // namespace attnres
