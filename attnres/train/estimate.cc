#include "attnres/train/estimate.h"

#include <ATen/Parallel.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "attnres/depth/mixing_cost.h"
#include "attnres/infer/evaluate.h"
#include "attnres/model/transformer.h"
#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "attnres/support/format.h"
#include "attnres/support/machine.h"
#include "attnres/support/progress.h"
#include "attnres/train/optimizer.h"
#include "attnres/train/probe.h"
#include "attnres/train/training_step.h"

namespace attnres {
namespace fs = std::filesystem;
namespace {

constexpr double kMiB = 1 << 20;
constexpr double kLibrary = 160 * kMiB;  // libtorch, and what it keeps for its matrix products
// What delta attention keeps, in numbers per channel of all heads: measured.
constexpr double kDeltaKeeps = 32;
constexpr double kFragmentation = 1.05;  // of the heap, by tensors of changing sizes

// Multiply-adds of `orthogonalize` of a matrix, or of each of a stack: per step A = X X^T, A A and
// A X.
double newton_schulz(const at::Tensor& matrix) {
  const double rows = static_cast<double>(matrix.size(-2));
  const double columns = static_cast<double>(matrix.size(-1));
  const double count = static_cast<double>(matrix.numel()) / (rows * columns);
  const double shorter = std::min(rows, columns);
  return kNewtonSchulzSteps * count * (2 * rows * columns * shorter + std::pow(shorter, 3));
}

// A recipe's sizes. What is said to be kept is in numbers per token.
class Sizes {
 public:
  Sizes(const Recipe& recipe, int64_t vocab_size)
      : model_(recipe.model),
        has_muon_(recipe.train.optimizer == "muon"),
        sublayers_(recipe.model.sublayers()),
        vocab_(static_cast<double>(vocab_size)),
        width_(static_cast<double>(recipe.model.width)),
        plan_(recipe.model, vocab_size, /*seed=*/std::nullopt, at::kFloat, at::kMeta) {}

  // Numbers by which a token is multiplied in all linear maps, of experts the chosen ones'.
  double multiplied() const {
    double numbers = 0;
    for (const Parameter& p : plan_.parameters().all()) {
      if (p.kind == ParameterKind::matrix) numbers += active(p.tensor);
    }
    return numbers;
  }
  double vocabulary_parameters() const { return vocab_ * width_; }
  double parameters() const { return static_cast<double>(plan_.parameters().count()); }

  // The optimizer's: AdamW keeps two for each parameter, Muon one.
  double moments() const {
    double numbers = 2 * parameters();
    for (const Parameter& p : muon_parameters()) numbers -= static_cast<double>(p.tensor.numel());
    return numbers;
  }
  // Of the matrices that Muon is at: their update, one before and one after a step of
  // Newton-Schulz.
  double update() const {
    double most = 0;
    for (const Parameter& p : muon_parameters()) {
      most = std::max(most, 3 * static_cast<double>(p.tensor.numel()));
    }
    return most;
  }
  double update_flops() const {
    double multiply_adds = 0;
    for (const Parameter& p : muon_parameters()) multiply_adds += newton_schulz(p.tensor);
    return 2 * multiply_adds;
  }

  // By a training step, the loss included.
  double kept(bool recompute) const {
    const double most_sources = most_sources_read();
    const double at_output = site() + 2 * width_;  // and the loss's gradient, twice
    // Gradients on their way down: of the feed-forward, and of every source that a site reads, one
    // that is summed up and one that is just computed. Recomputed spans have their own beside them.
    const double in_flight = 3 * (hidden() + width_) + (recompute ? 4 : 2) * most_sources * width_;
    if (!recompute) return span(0, sublayers_) + at_output + in_flight;

    std::vector<int> ends = plan_.mixer().cuts();
    ends.push_back(sublayers_);
    double crossing = 0, largest = 0;
    int begin = 0;
    for (const int end : ends) {
      crossing += std::max(1.0, sources(end) - sources(begin)) * width_;
      largest = std::max(largest, span(begin, end));
      begin = end;
    }
    return crossing + largest + at_output + in_flight;
  }

  // By a pass without gradients: the sources, and one sublayer at work.
  double kept_in_evaluation() const { return (most_sources_read() + 4) * width_ + 3 * hidden(); }

  // Logits at one time, of `tokens` tokens: those of a chunk, and their exponentials.
  double logits(double tokens) const {
    return 2 * vocab_ * std::min(tokens, std::max(64.0, 4.0 * kMiB / vocab_));
  }

  // Numbers per token that pass through memory in a step besides the matrix products.
  double traffic() const { return span(0, sublayers_) + site(); }
  // Beside the linear maps, per token.
  double attention_flops(double context) const {
    double flops = 0;
    for (int64_t layer = 0; layer < model_.layers; ++layer) flops += mixing_flops(layer, context);
    return flops;
  }

 private:
  double sources(int site) const {
    return static_cast<double>(plan_.mixer().source_names(site).size());
  }
  double most_sources_read() const {
    double most = 0;
    for (int site = 0; site <= sublayers_; ++site) most = std::max(most, sources(site));
    return most;
  }
  // What the mixer was seen to keep, and the sublayer's output.
  double site() const {
    if (!mixer_keeps_) mixer_keeps_ = measure_mixer(model_);
    return (*mixer_keeps_ + 1) * width_;
  }
  static double measure_mixer(const ModelConfig& model) {
    ParameterRegistry parameters(at::kFloat, /*seed=*/0);
    return measure_kept(*make_mixer(model.depth_mixing, model.mixer_shape(), parameters),
                        model.mixer_shape());
  }
  std::vector<Parameter> muon_parameters() const {
    std::vector<Parameter> chosen;
    for (const Parameter& p : plan_.parameters().all()) {
      if (has_muon_ && p.kind == ParameterKind::matrix) chosen.push_back(p);
    }
    return chosen;
  }
  // Of a stack of experts [E, out, in] those of the chosen ones.
  double active(const at::Tensor& matrix) const {
    const auto numbers = static_cast<double>(matrix.numel());
    if (matrix.dim() < 3) return numbers;
    return numbers * static_cast<double>(model_.experts.chosen) /
           static_cast<double>(model_.experts.count);
  }
  // The widest hidden layer that a token passes through.
  double hidden() const {
    const ExpertsSettings& e = model_.experts;
    return static_cast<double>(
        std::max(model_.ffn_width, e.count > 0 ? (e.chosen + e.shared) * e.width : 0));
  }
  double mixing_flops(int64_t layer, double context) const {
    const std::string& kind = model_.attention_of(layer);
    if (kind == kDelta) {
      // Within a chunk of 32 tokens half of the scores of q k and k k and their sums of values
      // count, and the triangular system; between chunks the state is read twice and updated.
      const DeltaAttentionSettings& delta = model_.delta_attention;
      const auto K = static_cast<double>(delta.head_width);
      return static_cast<double>(delta.heads) * 2 * K * (32 * 3 + 3 * K);
    }
    // Half of the T x T scores count, two products each.
    if (kind == kGroupedQuery) return 2 * context * width_;
    const LatentAttentionSettings& latent = model_.latent_attention;
    return static_cast<double>(model_.heads) * context *
           static_cast<double>(latent.key_width + latent.shared_key_width + latent.value_width);
  }
  double sublayer(int site) const {
    const int64_t layer = site / 2;
    if (site % 2 == 1) return feed_forward(layer);
    const std::string& kind = model_.attention_of(layer);
    if (kind == kDelta) {
      const DeltaAttentionSettings& delta = model_.delta_attention;
      return kDeltaKeeps * static_cast<double>(delta.heads * delta.head_width);
    }
    const auto heads = static_cast<double>(model_.heads);
    if (kind == kGroupedQuery) {
      const double keys = width_ / heads * static_cast<double>(model_.kv_heads);
      return 2 * width_ + 2 * keys + heads;
    }
    // Queries; keys and values as they come out of their map and as attention reads them; its
    // output, twice with a gate beside it; the latents.
    const LatentAttentionSettings& latent = model_.latent_attention;
    const auto keys = static_cast<double>(latent.key_width + latent.shared_key_width);
    const auto values = static_cast<double>(latent.value_width);
    return heads * (3 * keys + (latent.output_gate ? 5 : 3) * values + 1) +
           static_cast<double>(2 * latent.kv_rank + 2 * latent.q_rank);
  }
  double feed_forward(int64_t layer) const {
    // gate, silu(gate), up, their product
    if (!model_.has_experts(layer)) return 4 * static_cast<double>(model_.ffn_width);
    // Of experts also what they read, in the order of the experts, and wrote, and weights.
    const ExpertsSettings& e = model_.experts;
    const double read = e.latent_width > 0 ? static_cast<double>(e.latent_width) : width_;
    return static_cast<double>(4 * (e.chosen + e.shared) * e.width + 4 * e.count) +
           (2 * static_cast<double>(e.chosen) + 1) * read + width_;
  }
  double span(int begin, int end) const {
    double total = 0;
    for (int l = begin; l < end; ++l) total += site() + sublayer(l);
    return total;
  }

  const ModelConfig& model_;
  bool has_muon_;
  int sublayers_;
  double vocab_, width_;
  Transformer plan_;  // without values
  // By site, in units of the width. Measured when it is asked for: that takes memory and time,
  // which a model that is too large from its weights alone should not cost.
  mutable std::optional<double> mixer_keeps_;
};

// Of weights, gradients and moments, and the library's.
double standing_bytes(const Sizes& sizes) {
  return kLibrary + 4 * (2 * sizes.parameters() + sizes.moments());
}

// Of the last checkpoint, which has weights and moments, and of the best model: each is written
// beside the one that it replaces, one at a time.
double disk_bytes(const Sizes& sizes) {
  return 4 * (2 * (sizes.parameters() + sizes.moments()) + sizes.parameters());
}

double peak_bytes(const Recipe& recipe, const Sizes& sizes) {
  const TrainConfig& train = recipe.train;
  const double context = static_cast<double>(train.context);
  const int64_t rows = train.batch_size / train.accumulate;
  const double parameters = sizes.parameters();

  const auto pass = [&](double tokens, double kept) {
    return tokens * kept + sizes.logits(tokens);
  };
  // The head's gradient is there as soon as the loss is, twice; the others come while activations
  // go, unless earlier parts of the step left them.
  const double gradients = train.accumulate > 1 ? parameters : 2 * sizes.vocabulary_parameters();
  const double working = std::max(
      {pass(static_cast<double>(rows) * context, sizes.kept(train.recompute)) + gradients,
       parameters + sizes.update(),
       pass(kProbeWindows * context, sizes.kept(false)) + 2 * sizes.vocabulary_parameters(),
       pass(std::max(context, static_cast<double>(kEvaluationTokensABatch)),
            sizes.kept_in_evaluation())});
  return kLibrary + 4 * (parameters + sizes.moments() + kFragmentation * working);
}

double step_seconds(const Recipe& recipe, const Sizes& sizes, const MachineSpeed& speed) {
  const TrainConfig& train = recipe.train;
  const double tokens = static_cast<double>(train.batch_size * train.context);
  // Forward once, backward twice the forward, and the forward again where it is recomputed.
  const double passes = train.recompute ? 4 : 3;
  const double flops =
      tokens * (passes * 2 * (sizes.multiplied() + sizes.vocabulary_parameters()) +
                passes * sizes.attention_flops(static_cast<double>(train.context))) +
      sizes.update_flops();
  // Traffic per number kept: forward, backward and as a gradient, with temporaries. Measured, over
  // widths of 64 to 512. The update reads and writes weights, gradients and moments.
  constexpr double kTouched = 24, kTouchedByUpdate = 9;
  const double bytes = 4 * (tokens * kTouched * (passes / 3) * sizes.traffic() +
                            kTouchedByUpdate * sizes.parameters());
  return flops / speed.matmul + bytes / speed.copy;
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
          .bytes = static_cast<int64_t>(peak_bytes(recipe, sizes)),
          .disk_bytes = static_cast<int64_t>(disk_bytes(sizes)),
          .seconds_per_step = step_seconds(recipe, sizes, speed)};
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
          .free_disk = known ? static_cast<int64_t>(disk.available) + replaced : INT64_MAX};
}

std::vector<std::string> check_resources(const Recipe& recipe, int64_t vocab_size,
                                         const Resources& there, bool force) {
  std::vector<std::string> warnings;
  const auto refuse = [&](const std::string& reason) {
    require(force, "{}; --force begins all the same", reason);
    warnings.push_back(reason);
  };
  const Sizes sizes(recipe, vocab_size);
  const double memory = static_cast<double>(there.memory), standing = standing_bytes(sizes);
  if (standing > memory) {
    refuse(
        fmt::format("recipe {}: weights, gradients and moments alone need about {} of memory, this "
                    "machine (or this process's cgroup) has {}. Lower model.width, model.layers or "
                    "the vocabulary",
                    recipe.name, format_bytes(standing), format_bytes(memory)));
  } else {
    constexpr const char* kRemedy =
        "Raise train.accumulate (the same batch in smaller parts), set train.recompute=true, or "
        "lower train.batch_size or model.width";
    const double needed = peak_bytes(recipe, sizes);
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

double measure_matmul(int threads) {
  require(threads >= 1, "measure_matmul: expected 1 thread or more, got {}", threads);
  constexpr int64_t kSize = 1024;
  const Threads set(threads);
  const at::Tensor a = at::rand({kSize, kSize}), b = at::rand({kSize, kSize});
  double best = std::numeric_limits<double>::infinity();
  for (int round = 0; round < 5; ++round) {
    const double start = monotonic_seconds();
    at::mm(a, b);
    best = std::min(best, monotonic_seconds() - start);
  }
  return 2.0 * kSize * kSize * kSize / best;
}

MachineSpeed measure_speed() {
  const int threads = at::get_num_threads();
  return {.matmul = measure_matmul(threads), .copy = measure_copy(threads) * 1e9};
}

double time_step(const Recipe& recipe, int64_t vocab_size) {
  constexpr size_t kSteps = 7;
  constexpr double kSecondsToSpend = 10;
  const TrainConfig& train = recipe.train;
  const Transformer model(recipe.model, vocab_size, /*seed=*/0);
  Optimizer optimizer(model.parameters(), train);
  TrainingStep step(model, optimizer, train);
  const std::vector<int64_t> shape = {train.batch_size / train.accumulate, train.context};
  std::vector<double> seconds;
  const double begin = monotonic_seconds();
  while (seconds.size() < 3 ||
         (seconds.size() < 1 + kSteps && monotonic_seconds() - begin < kSecondsToSpend)) {
    const at::Tensor ids_BT = at::randint(vocab_size, shape, at::kLong);
    const double start = monotonic_seconds();
    step.forward_backward({ids_BT, ids_BT});
    const double parts = (monotonic_seconds() - start) * static_cast<double>(train.accumulate);
    const double update = monotonic_seconds();
    step.update(/*learning_rate=*/0);
    seconds.push_back(parts + monotonic_seconds() - update);
  }
  std::sort(seconds.begin() + 1, seconds.end());
  return seconds[seconds.size() / 2];
}

}  // namespace attnres
