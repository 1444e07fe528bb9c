#include "attnres/train/estimate/estimate.h"

#include <ATen/Parallel.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "attnres/depth/mixing_cost.h"
#include "attnres/infer/evaluate.h"
#include "attnres/model/model_cost.h"
#include "attnres/model/transformer.h"
#include "attnres/ops/matmul/products.h"
#include "attnres/parallel/mpi_communicator.h"
#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "attnres/support/format.h"
#include "attnres/support/machine.h"
#include "attnres/support/progress.h"
#include "attnres/train/estimate/training_cost.h"
#include "attnres/train/optimizers/optimizer.h"
#include "attnres/train/step/training_step.h"

namespace attnres {
namespace fs = std::filesystem;
namespace {

// A recipe's model, and what its optimizer adds.
class Sizes {
 public:
  Sizes(const Recipe& recipe, int64_t vocab_size)
      : model(recipe.model, vocab_size),
        updates_(update_costs(model.parameters(), recipe.model.sublayers(), recipe.train)),
        vocab_(static_cast<double>(vocab_size)) {}

  double parameters() const { return static_cast<double>(model.parameters().count()); }

  double moments() const {
    double numbers = 0;
    for (const UpdateCost& update : updates_) numbers += update.moments;
    return numbers;
  }
  double update() const {
    double most = 0;
    for (const UpdateCost& update : updates_) most = std::max(most, update.working);
    return most;
  }
  double update_flops() const {
    double flops = 0;
    for (const UpdateCost& update : updates_) flops += update.flops;
    return flops;
  }

  double logits(double tokens) const { return logits_at_once(vocab_, tokens); }

  const ModelCost model;

 private:
  std::vector<UpdateCost> updates_;
  double vocab_;
};

// Bytes of weights, gradients and moments, and the library's.
double standing_bytes(const Sizes& sizes) {
  return kLibraryBytes + 4 * (2 * sizes.parameters() + sizes.moments());
}

// Bytes of the last checkpoint, which has weights and moments, and of the best model: each is
// written beside the one that it replaces, one at a time.
double disk_bytes(const Sizes& sizes) {
  return 4 * (2 * (sizes.parameters() + sizes.moments()) + sizes.parameters());
}

double peak_bytes(const Recipe& recipe, int64_t vocab_size, const Sizes& sizes) {
  const TrainConfig& train = recipe.train;
  const int64_t rows = train.batch_size / train.accumulate;
  const auto tokens = static_cast<double>(rows * train.context);
  const double parameters = sizes.parameters();

  const at::ScalarType activations = precision_of(train).activations;
  const auto number = static_cast<double>(c10::elementSize(activations));
  const double copies = activations == at::kFloat ? 0 : parameters * number;
  // The head's gradient is there as soon as the loss is, twice; the others come while activations
  // go, unless earlier parts of the step left them.
  const double gradients = train.accumulate > 1 ? parameters : 2 * sizes.model.head();
  const double step =
      tokens * number * sizes.model.kept(train.recompute) + 4 * (sizes.logits(tokens) + gradients);
  const double working = std::max(
      {step, 4 * (parameters + sizes.update()), evaluation_bytes(sizes.model, vocab_size, train)});
  return kLibraryBytes + 4 * (parameters + sizes.moments()) + copies + kFragmentation * working;
}

double tokens_per_step(const TrainConfig& train) {
  return static_cast<double>(train.batch_size * train.context);
}

// Forward once, backward twice the forward, and the forward again where it is recomputed.
double passes_per_step(const TrainConfig& train) {
  return train.recompute ? 4 : 3;
}

double step_flops(const TrainConfig& train, const Sizes& sizes) {
  return tokens_per_step(train) * passes_per_step(train) * 2 *
             (sizes.model.linear_maps() + sizes.model.head() +
              sizes.model.between_tokens(train.context)) +
         sizes.update_flops();
}

double step_seconds(const Recipe& recipe, const Sizes& sizes, const MachineSpeed& speed) {
  const TrainConfig& train = recipe.train;
  const auto number = static_cast<double>(c10::elementSize(precision_of(train).activations));
  const double mixing = speed.mixing > 0 ? speed.mixing / speed.copy : kMixingOverCopies;
  const double bytes = number * tokens_per_step(train) * passes_per_step(train) *
                           moved_forward(sizes.model, {}, mixing) +
                       4 * kTouchedByUpdate * sizes.parameters();
  return step_flops(train, sizes) / speed.matmul + bytes / speed.copy;
}

class Threads {
 public:
  explicit Threads(int threads) : before_(at::get_num_threads()) { at::set_num_threads(threads); }
  ~Threads() { at::set_num_threads(before_); }

 private:
  int before_;
};

}  // namespace

Estimate estimate(const Recipe& recipe, int64_t vocab_size, const MachineSpeed& speed) {
  const Sizes sizes(recipe, vocab_size);
  return {.parameters = static_cast<int64_t>(sizes.parameters()),
          .bytes = static_cast<int64_t>(peak_bytes(recipe, vocab_size, sizes)),
          .disk_bytes = static_cast<int64_t>(disk_bytes(sizes)),
          .flops_per_step = step_flops(recipe.train, sizes),
          .seconds_per_step = step_seconds(recipe, sizes, speed)};
}

double run_seconds(const TrainConfig& train, const Estimate& cost, double steps, double looks) {
  constexpr double kForward = 1. / 3, kBeside = 1.15;
  const double steps_a_look =
      kForward * static_cast<double>(train.eval_tokens) / tokens_per_step(train);
  return kBeside * cost.seconds_per_step * (steps + looks * steps_a_look);
}

double run_seconds(const TrainConfig& train, const Estimate& cost) {
  const double steps = static_cast<double>(train.steps);
  return run_seconds(train, cost, steps, std::ceil(steps / static_cast<double>(train.eval_every)));
}

Resources find_resources(const fs::path& checkpoints) {
  std::error_code code;
  int64_t replaced = 0;
  for (fs::recursive_directory_iterator at(checkpoints, code), end; !code && at != end;
       at.increment(code)) {
    if (at->is_regular_file(code)) replaced += static_cast<int64_t>(at->file_size(code));
  }
  const fs::space_info disk = fs::space(existing_part(checkpoints), code);
  const bool known = !code && disk.capacity > 0;
  const int64_t memory = describe_machine().memory;
  return {.memory = memory > 0 ? memory : INT64_MAX,
          .free_memory = memory > 0 ? available_memory() + resident_bytes() : INT64_MAX,
          .free_disk = known ? static_cast<int64_t>(disk.available) + replaced : INT64_MAX,
          .processes = launched_on_this_machine()};
}

std::vector<std::string> check_resources(const Recipe& recipe, int64_t vocab_size,
                                         const Resources& there, bool force) {
  std::vector<std::string> warnings;
  const auto refuse = [&](const std::string& reason) {
    require(force, "{}; --force begins all the same", reason);
    warnings.push_back(reason);
  };
  const Sizes sizes(recipe, vocab_size);
  const bool alone = recipe.parallel.processes() == 1;
  // How many models' parts lie on this machine.
  const double models =
      alone ? 1
            : static_cast<double>(there.processes) / static_cast<double>(recipe.parallel.pipeline);
  const double memory = static_cast<double>(there.memory),
               standing = models * standing_bytes(sizes);
  if (standing > memory) {
    refuse(
        fmt::format("recipe {}: weights, gradients and moments alone need about {} of memory, this "
                    "machine (or this process's cgroup) has {}. Lower model.width, model.layers or "
                    "the vocabulary",
                    recipe.name, format_bytes(standing), format_bytes(memory)));
  } else if (alone) {
    constexpr const char* kRemedy =
        "Raise train.accumulate (the same batch in smaller parts), set train.recompute=true, or "
        "lower train.batch_size or model.width";
    const double needed = peak_bytes(recipe, vocab_size, sizes);
    const std::string needs = fmt::format(
        "recipe {}: training needs about {} of memory ({} of it for weights, gradients "
        "and moments)",
        recipe.name, format_bytes(needed), format_bytes(standing));
    if (needed > memory) {
      refuse(fmt::format("{}, this machine (or this process's cgroup) has {}. {}", needs,
                         format_bytes(memory), kRemedy));
    } else if (needed > static_cast<double>(there.free_memory)) {
      warnings.push_back(fmt::format(
          "{}, of {} only {} is free now. If it runs out, close other programs, or: {}", needs,
          format_bytes(memory), format_bytes(static_cast<double>(there.free_memory)), kRemedy));
    }
  }
  if (const double disk = disk_bytes(sizes); disk > static_cast<double>(there.free_disk)) {
    refuse(fmt::format(
        "recipe {}: the checkpoints need about {} of disk, {} is free. Free some space, "
        "or choose another --out",
        recipe.name, format_bytes(disk), format_bytes(static_cast<double>(there.free_disk))));
  }
  return warnings;
}

double measure_matmul(int threads, at::ScalarType dtype) {
  require(threads >= 1, "measure_matmul: expected 1 thread or more, got {}", threads);
  constexpr int64_t kSize = 1024;
  const Threads set(threads);
  const at::Tensor a = at::rand({kSize, kSize}).to(dtype), b = at::rand({kSize, kSize}).to(dtype);
  double best = std::numeric_limits<double>::infinity();
  for (int round = 0; round < 5; ++round) {
    const double start = monotonic_seconds();
    product(Product::output, a, b);
    best = std::min(best, monotonic_seconds() - start);
  }
  return 2.0 * kSize * kSize * kSize / best;
}

double measure_mixing(const ModelConfig& model, int threads) {
  require(threads >= 1, "measure_mixing: expected 1 thread or more, got {}", threads);
  constexpr double kNumbers = 1 << 26;  // moved in a round
  constexpr int kRounds = 4;
  const Threads set(threads);
  const MixerShape shape = model.mixer_shape();
  ParameterRegistry parameters(at::kFloat, /*seed=*/0);
  const auto mixer = model.depth_mixing.make_mixer(shape, parameters);
  const double of_token =
      3 * measure_moved(*mixer, shape) * static_cast<double>(shape.width * shape.sublayers);
  const auto tokens = static_cast<int64_t>(std::clamp(kNumbers / of_token, 16.0, 4096.0));
  double best = std::numeric_limits<double>::infinity();
  for (int round = 0; round < kRounds; ++round) {
    best = std::min(best, time_mixing(*mixer, shape, tokens));
  }
  return 4 * of_token * static_cast<double>(tokens) / best;
}

MachineSpeed measure_speed(const Recipe& recipe) {
  const int threads = at::get_num_threads();
  return {.matmul = measure_matmul(threads, precision_of(recipe.train).activations),
          .copy = measure_copy(threads) * 1e9,
          .mixing = measure_mixing(recipe.model, threads)};
}

StepTimes time_steps(const Recipe& recipe, int64_t vocab_size, double seconds,
                     const std::function<void()>& on_step) {
  constexpr size_t kSteps = 7;
  const TrainConfig& train = recipe.train;
  const Transformer model(recipe.model, vocab_size, /*seed=*/0, precision_of(train));
  Optimizer optimizer(model, train);
  TrainingStep step(model, optimizer, train);
  const std::vector<int64_t> shape = {train.batch_size / train.accumulate, train.context};
  std::vector<double> times;
  const double begin = monotonic_seconds();
  while (times.size() < 3 || (times.size() < 1 + kSteps && monotonic_seconds() - begin < seconds)) {
    const at::Tensor ids_BT = at::randint(vocab_size, shape, at::kLong);
    const double start = monotonic_seconds();
    step.forward_backward({ids_BT, ids_BT});
    const double parts = (monotonic_seconds() - start) * static_cast<double>(train.accumulate);
    const double update = monotonic_seconds();
    step.update(/*learning_rate=*/0);
    times.push_back(parts + monotonic_seconds() - update);
    if (on_step) on_step();
  }
  times.erase(times.begin());
  std::sort(times.begin(), times.end());
  return {.least = times.front(), .median = times[times.size() / 2], .most = times.back()};
}

}  // namespace attnres
