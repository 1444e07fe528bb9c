// How far estimates of training are from training: bench_estimate RECIPE.json ... [key=value ...]
//
// Per recipe, seconds a step: the median of 20 real ones; as time_steps times it; as estimated from
// the machine's speed; both over the first; and that speed, copies and mixing in GB/s. Run it on a
// machine that does nothing else.
#include "attnres/train/estimate/estimate.h"

#include <ATen/ops/randint.h>
#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "attnres/model/transformer.h"
#include "attnres/support/progress.h"
#include "attnres/train/optimizers/optimizer.h"
#include "attnres/train/step/training_step.h"
#include "bench/benchmark.h"

namespace attnres {
namespace {

double measured_seconds(const Recipe& recipe, int64_t vocab_size) {
  constexpr int kSteps = 20;
  const TrainConfig& train = recipe.train;
  const Transformer model(recipe.model, vocab_size, /*seed=*/1);
  Optimizer optimizer(model, train);
  TrainingStep training(model, optimizer, train);
  std::vector<double> seconds;
  for (int step = 0; step < kSteps; ++step) {
    const double start = monotonic_seconds();
    for (int64_t part = 0; part < train.accumulate; ++part) {
      const at::Tensor ids_BT =
          at::randint(vocab_size, {train.batch_size / train.accumulate, train.context}, at::kLong);
      training.forward_backward({ids_BT, ids_BT});
    }
    training.update(/*learning_rate=*/1e-4);
    seconds.push_back(monotonic_seconds() - start);
  }
  std::nth_element(seconds.begin(), seconds.begin() + kSteps / 2, seconds.end());
  return seconds[kSteps / 2];
}

void run(const std::vector<std::string>& arguments) {
  std::vector<std::string> files, overrides;
  for (const std::string& argument : arguments) {
    (argument.find('=') == std::string::npos ? files : overrides).push_back(argument);
  }
  fmt::print("{:<40}{:>10}{:>10}{:>8}{:>11}{:>8}{:>9}{:>9}{:>8}\n", "recipe", "measured", "timed",
             "ratio", "estimated", "ratio", "GFLOP/s", "copies", "mixing");
  for (const std::string& file : files) {
    const Recipe recipe = load_recipe(file, overrides);
    const int64_t vocab_size = recipe.tokenizer.vocab_size;
    const MachineSpeed speed = measure_speed(recipe);
    const double estimated = estimate(recipe, vocab_size, speed).seconds_per_step;
    const double timed = time_steps(recipe, vocab_size).median;
    const double measured = measured_seconds(recipe, vocab_size);
    fmt::print("{:<40}{:>10.4f}{:>10.4f}{:>8.2f}{:>11.4f}{:>8.2f}{:>9.1f}{:>9.1f}{:>8.1f}\n", file,
               measured, timed, timed / measured, estimated, estimated / measured,
               speed.matmul / 1e9, speed.copy / 1e9, speed.mixing / 1e9);
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace attnres

int main(int argc, char** argv) {
  return attnres::bench::run_benchmark("bench_estimate", [&] {
    attnres::run({argv + 1, argv + argc});
  });
}
