#include "attnres/train/estimate/estimate.h"

#include <ATen/Parallel.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros_like.h>

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
#include "attnres/support/compute_device.h"
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
  Sizes(const Recipe& recipe, int64_t vocab_size, at::Device device, const WeightFormats& kept)
      : model(recipe.model, vocab_size, /*tensor=*/1, device),
        library(device.is_cpu() ? kLibraryBytes : kGpuLibraryBytes),
        head_(recipe.model.tie_embeddings ? ParameterKind::embedding : ParameterKind::head),
        has_lora_(recipe.model.lora.rank > 0),
        updates_(update_costs(model.parameters(), recipe.model.sublayers(), recipe.train)),
        vocab_size_(vocab_size),
        device_(device.type()) {
    for (const Parameter& p : model.parameters().all()) {
      const bool is_packed = kept.of(p.site, p.role) != WeightFormat::f32;
      if (is_packed) packed_ += stored_bytes(p, kept);
      if (!is_packed || is_taken_apart(p)) floats_ += static_cast<double>(p.tensor.numel());
    }
  }

  double parameters() const { return static_cast<double>(model.parameters().count()); }
  // Bytes of all weights, and numbers of those, and of copies, that products read as they are.
  double weights() const { return 4 * floats_ + packed_; }
  double floats() const { return floats_; }
  double gradients() const { return total(&UpdateCost::gradient); }
  bool is_adapter() const { return has_lora_ || packed_ > 0; }
  // Numbers of the head's gradient.
  double head_gradient() const {
    double numbers = 0;
    for (size_t i = 0; i < updates_.size(); ++i) {
      if (model.parameters().all()[i].kind == head_) numbers += updates_[i].gradient;
    }
    return numbers;
  }
  // Numbers that a step keeps of a token.
  double kept(bool recompute) const {
    return model.kept(recompute) - (recompute || trained_share() > 0 ? 0 : model.kept_for_maps());
  }
  // The share of matrices' numbers that are trained.
  double trained_share() const {
    double trained = 0, all = 0;
    for (size_t i = 0; i < updates_.size(); ++i) {
      const Parameter& p = model.parameters().all()[i];
      if (p.kind != ParameterKind::matrix) continue;
      all += static_cast<double>(p.tensor.numel());
      trained += updates_[i].gradient;
    }
    return all > 0 ? trained / all : 1;
  }

  double moments() const { return total(&UpdateCost::moments); }
  double update() const {
    double most = 0;
    for (const UpdateCost& update : updates_) most = std::max(most, update.working);
    return most;
  }
  double update_flops() const { return total(&UpdateCost::flops); }

  double logits(double tokens) const { return logits_at_once(vocab_size_, tokens, device_); }
  double evaluation_bytes(const TrainConfig& train) const {
    return attnres::evaluation_bytes(model, vocab_size_, train, device_);
  }

  const ModelCost model;
  const double library;  // bytes

 private:
  // What the loss and latent attention multiply by in float32 (Linear::weight_for).
  bool is_taken_apart(const Parameter& p) const { return p.kind == head_ || p.role == "kv_b_proj"; }
  double total(double UpdateCost::*of) const {
    double sum = 0;
    for (const UpdateCost& update : updates_) sum += update.*of;
    return sum;
  }

  ParameterKind head_;
  bool has_lora_;
  double packed_ = 0, floats_ = 0;
  std::vector<UpdateCost> updates_;
  int64_t vocab_size_;
  c10::DeviceType device_;
};

// Bytes of weights, gradients and moments, and the library's.
double standing_bytes(const Sizes& sizes) {
  return sizes.library + sizes.weights() + 4 * (sizes.gradients() + sizes.moments());
}

// Bytes of the last checkpoint, which has weights and moments, and of the best model: each is
// written beside the one that it replaces, one at a time. Of an adapter, what is trained.
double disk_bytes(const Sizes& sizes) {
  const double saved = sizes.is_adapter() ? sizes.gradients() : sizes.parameters();
  return 4 * (2 * (saved + sizes.moments()) + saved);
}

double peak_bytes(const TrainConfig& train, const Sizes& sizes) {
  const int64_t rows = train.batch_size / train.accumulate;
  const auto tokens = static_cast<double>(rows * train.context);

  const at::ScalarType activations = precision_of(train).activations;
  const auto number = static_cast<double>(c10::elementSize(activations));
  const double copies = activations == at::kFloat ? 0 : sizes.floats() * number;
  // The head's gradient is there as soon as the loss is, twice; the others come while activations
  // go, unless earlier parts of the step left them.
  const double gradients = train.accumulate > 1 ? sizes.gradients() : 2 * sizes.head_gradient();
  const double step =
      tokens * number * sizes.kept(train.recompute) + 4 * (sizes.logits(tokens) + gradients);
  const double working =
      std::max({step, 4 * (sizes.gradients() + sizes.update()), sizes.evaluation_bytes(train)});
  return sizes.library + sizes.weights() + 4 * sizes.moments() + copies + kFragmentation * working;
}

double tokens_per_step(const TrainConfig& train) {
  return static_cast<double>(train.batch_size * train.context);
}

// Forward once, backward twice the forward, and the forward again where it is recomputed.
double passes_per_step(const TrainConfig& train) {
  return train.recompute ? 4 : 3;
}

double step_flops(const TrainConfig& train, const Sizes& sizes) {
  const double passes = passes_per_step(train);
  // What is not trained has no gradient of its own.
  const double head = sizes.head_gradient() > 0 ? passes : passes - 1;
  return tokens_per_step(train) * 2 *
             ((passes - 1 + sizes.trained_share()) * sizes.model.linear_maps() +
              head * sizes.model.head() + passes * sizes.model.between_tokens(train.context)) +
         sizes.update_flops();
}

double step_seconds(const Recipe& recipe, const Sizes& sizes, const MachineSpeed& speed) {
  const TrainConfig& train = recipe.train;
  const auto number = static_cast<double>(c10::elementSize(precision_of(train).activations));
  const double mixing = speed.mixing > 0 ? speed.mixing / speed.copy : kMixingOverCopies;
  const double bytes = number * tokens_per_step(train) * passes_per_step(train) *
                           moved_forward(sizes.model, {}, mixing) +
                       4 * kTouchedByUpdate * sizes.gradients();
  return step_flops(train, sizes) / speed.matmul + bytes / speed.copy;
}

std::string owner_of(const Resources& there) {
  return there.device_name.empty() ? "this machine (or this process's cgroup)" : there.device_name;
}

// The first change of the recipe with which training fits: the same batch in more parts, or these
// with recomputation. Empty where none does.
std::string what_fits(const TrainConfig& train, const Sizes& sizes, double memory) {
  TrainConfig changed = train;
  for (const bool recompute : {train.recompute, true}) {
    changed.recompute = recompute;
    for (int64_t parts = train.accumulate; parts <= train.batch_size; ++parts) {
      if (train.batch_size % parts != 0) continue;
      changed.accumulate = parts;
      const double needed = peak_bytes(changed, sizes);
      if (needed > memory) continue;
      std::string settings;
      if (parts != train.accumulate) settings += fmt::format(" train.accumulate={}", parts);
      if (recompute != train.recompute) settings += " train.recompute=true";
      return fmt::format("It fits with --set{}, in about {}", settings, format_bytes(needed));
    }
  }
  return "";
}

struct Shortage {
  std::string text;  // empty: there is none
  bool is_certain;   // or of memory that may be free when it is needed
};

// Of training by one process.
Shortage memory_shortage(const Recipe& recipe, const Sizes& sizes, const Resources& there) {
  const double needed = peak_bytes(recipe.train, sizes), memory = static_cast<double>(there.memory),
               free = static_cast<double>(there.free_memory);
  if (needed <= std::min(memory, free)) return {};
  const bool is_certain = needed > memory || !there.device.is_cpu();
  std::string remedy =
      "Raise train.accumulate (the same batch in smaller parts), set train.recompute=true, or "
      "lower train.batch_size or model.width";
  if (const std::string fits = what_fits(recipe.train, sizes, std::min(memory, free));
      !fits.empty()) {
    remedy += ". " + fits;
  }
  const std::string needs = fmt::format(
      "recipe {}: training needs about {} of memory ({} of it for weights, gradients "
      "and moments)",
      recipe.name, format_bytes(needed), format_bytes(standing_bytes(sizes)));
  if (needed > memory) {
    return {fmt::format("{}, {} has {}. {}", needs, owner_of(there), format_bytes(memory), remedy),
            is_certain};
  }
  return {
      fmt::format("{}, of {}{} only {} is free now. If it runs out, close other programs, or: {}",
                  needs, format_bytes(memory),
                  there.device_name.empty() ? "" : " on " + there.device_name, format_bytes(free),
                  remedy),
      is_certain};
}

// The least seconds of a few times `compute`, until a number of its result is read: a device
// computes while the host goes on.
template <class F>
double best_seconds(const F& compute) {
  double best = std::numeric_limits<double>::infinity();
  for (int round = 0; round < 5; ++round) {
    const double start = monotonic_seconds();
    compute().flatten()[0].template item<double>();
    best = std::min(best, monotonic_seconds() - start);
  }
  return best;
}

class Threads {
 public:
  explicit Threads(int threads) : before_(at::get_num_threads()) { at::set_num_threads(threads); }
  ~Threads() { at::set_num_threads(before_); }

 private:
  int before_;
};

}  // namespace

Estimate estimate(const Recipe& recipe, int64_t vocab_size, const MachineSpeed& speed,
                  at::Device device, const WeightFormats& kept) {
  const Sizes sizes(recipe, vocab_size, device, kept);
  return {.parameters = static_cast<int64_t>(sizes.parameters()),
          .bytes = static_cast<int64_t>(peak_bytes(recipe.train, sizes)),
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
  Resources there = {
      .memory = INT64_MAX,
      .free_memory = INT64_MAX,
      .free_disk = known ? static_cast<int64_t>(disk.available) + replaced : INT64_MAX,
      .processes = launched_on_this_machine(),
      .device = compute_device()};
  if (there.device.is_cpu()) {
    if (const int64_t memory = describe_machine().memory; memory > 0) {
      there.memory = memory;
      there.free_memory = available_memory() + resident_bytes();
    }
  } else if (const DeviceMemory memory = device_memory(there.device); memory.all > 0) {
    there.memory = memory.all;
    there.free_memory = memory.free;
    there.device_name = memory.name;
  }
  return there;
}

std::vector<std::string> check_resources(const Recipe& recipe, int64_t vocab_size,
                                         const Resources& there, bool force,
                                         const WeightFormats& kept) {
  std::vector<std::string> warnings;
  const auto refuse = [&](const std::string& reason) {
    require(force, "{}; --force begins all the same", reason);
    warnings.push_back(reason);
  };
  const Sizes sizes(recipe, vocab_size, there.device, kept);
  const bool alone = recipe.parallel.processes() == 1;
  // How many models' parts lie on this machine.
  const double models =
      alone ? 1
            : static_cast<double>(there.processes) / static_cast<double>(recipe.parallel.pipeline);
  const double memory = static_cast<double>(there.memory),
               standing = models * standing_bytes(sizes);
  if (standing > memory) {
    refuse(
        fmt::format("recipe {}: weights, gradients and moments alone need about {} of memory, {} "
                    "has {}. Lower model.width, model.layers or the vocabulary",
                    recipe.name, format_bytes(standing), owner_of(there), format_bytes(memory)));
  } else if (alone) {
    const Shortage shortage = memory_shortage(recipe, sizes, there);
    if (shortage.is_certain) {
      refuse(shortage.text);
    } else if (!shortage.text.empty()) {
      warnings.push_back(shortage.text);
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

double measure_matmul(at::Device device, at::ScalarType dtype) {
  constexpr int64_t kSize = 4096;
  const auto options = at::TensorOptions(device).dtype(dtype);
  const at::Tensor a = at::ones({kSize, kSize}, options), b = at::ones({kSize, kSize}, options);
  const double seconds = best_seconds([&] { return product(Product::output, a, b); });
  return 2.0 * kSize * kSize * kSize / seconds;
}

double measure_copy(at::Device device) {
  constexpr int64_t kBytes = int64_t{1} << 28;  // fits no cache
  const at::Tensor from = at::ones({kBytes}, at::TensorOptions(device).dtype(at::kByte));
  const at::Tensor to = at::zeros_like(from);
  const double seconds = best_seconds([&] {
    to.copy_(from);
    return to;
  });
  return 2.0 * kBytes / seconds;
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
