#include "attnres/plan/inference.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <c10/util/accumulate.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "attnres/layers/experts.h"
#include "attnres/model/model_cost.h"
#include "attnres/model/transformer.h"
#include "attnres/ops/matmul/matmul.h"
#include "attnres/ops/packed_weight/packed_weight.h"
#include "attnres/support/error.h"
#include "attnres/support/format.h"
#include "attnres/support/machine.h"
#include "attnres/support/progress.h"

namespace attnres {
namespace {

bool is_routed(const Parameter& p) {
  return p.kind == ParameterKind::matrix && p.tensor.dim() == 3;
}

double read_bytes(const Parameter& p, const WeightFormats& formats, const ModelConfig& config) {
  const double stored = stored_bytes(p, formats);
  if (is_routed(p)) {
    const auto& experts = config.settings<ExpertsSettings>();
    return stored * static_cast<double>(experts.chosen) / static_cast<double>(experts.count);
  }
  const bool is_looked_up = p.kind == ParameterKind::embedding && !config.tie_embeddings;
  return is_looked_up ? stored / static_cast<double>(p.tensor.size(0)) : stored;
}

Transformer shapes_of(const ModelConfig& config, int64_t vocab_size) {
  return {config, vocab_size, /*seed=*/std::nullopt, at::kFloat, at::kMeta};
}

// Layers of one kind have the same attention, and experts or none.
using Kind = std::pair<std::string, bool>;

Kind kind_of(const ModelConfig& config, int64_t layer) {
  return {config.attention_of(layer), config.has_experts(layer)};
}

// What a token reads of each layer.
std::vector<double> read_by_layers(const ModelConfig& config, const WeightFormats& formats) {
  std::vector<double> read(config.layers);
  const Transformer shapes = shapes_of(config, /*vocab_size=*/1);
  for (const Parameter& p : shapes.parameters().all()) {
    if (p.site < 0 || p.site >= config.sublayers()) continue;
    read[p.site / 2] += read_bytes(p, formats, config);
  }
  return read;
}

// So many layers that are like `layer`, with fewer experts to choose of.
ModelConfig layers_like(const ModelConfig& config, int64_t layer, int64_t count) {
  constexpr int64_t kExperts = 8;  // for each that is chosen
  ModelConfig alike = config;
  alike.layers = count;
  alike.attention = {config.attention_of(layer)};
  alike.depth_mixing = DepthMixing();
  ExpertsSettings& experts = alike.settings<ExpertsSettings>();
  if (config.has_experts(layer)) {
    experts.count = std::min(experts.count, kExperts * experts.chosen);
    experts.groups = experts.chosen_groups = 1;
    experts.dense_layers = 0;
  } else {
    experts = {};
  }
  return alike;
}

// The formats of one layer for all of them.
WeightFormats formats_like(const WeightFormats& formats, int64_t layer, const Transformer& shapes) {
  WeightFormats::OfWeights own;
  for (const Parameter& p : shapes.parameters().all()) {
    if (p.site < 0 || p.site >= shapes.sublayers()) continue;
    own[{p.site, p.role}] = formats.of(static_cast<int>(2 * layer) + p.site % 2, p.role);
  }
  return WeightFormats(std::move(own));
}

// Bytes of these sizes as a model's file has them in memory: mapped, in the pages of the system's
// cache. `tile`, again and again.
at::Tensor as_mapped(at::IntArrayRef sizes, const at::Tensor& tile) {
  const auto bytes = static_cast<size_t>(c10::multiply_integers(sizes));
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::tmpfile(), std::fclose);
  bool is_written = file != nullptr;
  for (size_t done = 0; is_written && done < bytes;) {
    const size_t here = std::min(bytes - done, tile.nbytes());
    is_written = std::fwrite(tile.const_data_ptr(), 1, here, file.get()) == here;
    done += here;
  }
  void* const memory =
      is_written && std::fflush(file.get()) == 0
          ? ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE | MAP_POPULATE, fileno(file.get()), 0)
          : MAP_FAILED;
  require(memory != MAP_FAILED, "no room for a temporary file of {}: {}",
          format_bytes(static_cast<double>(bytes)), std::strerror(errno));
  return at::from_blob(
      memory, sizes, [bytes](void* begin) { ::munmap(begin, bytes); }, at::kByte);
}

// Random rows.
void fill(const PackedMatrix& packed) {
  constexpr int64_t kRows = 32;
  const at::Tensor values =
      at::randn({kRows, packed.columns}) / std::sqrt(static_cast<double>(packed.columns));
  const at::Tensor rows = pack_weight(values, packed.format).bytes;
  // The system keeps what was written together in large pieces, as it keeps what was read.
  constexpr size_t kTogether = size_t{1} << 23;
  const auto times = static_cast<int64_t>(kTogether / rows.nbytes()) + 1;
  packed.bytes.set_(as_mapped(packed.bytes.sizes(), rows.repeat({times, 1})));
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Such a model without its head, with a sequence that is written.
class Layers {
 public:
  Layers(const ModelConfig& config, const WeightFormats& formats)
      : model_(config, kVocabulary, /*seed=*/std::nullopt, {at::kFloat, at::kFloat, formats}),
        pool_(model_.make_pool({.tokens = 256})),
        sequence_(pool_->add()) {
    for (const Parameter& p : model_.parameters().all()) {
      p.packed.defined() ? fill(p.packed) : model_.parameters().start(p, /*seed=*/1);
    }
    for (int i = 0; i < 4; ++i) time_token();
  }

  double time_token() {
    const at::Tensor id = at::full({1}, tokens_++ * 7 % kVocabulary, at::kLong);
    const double begin = monotonic_seconds();
    model_.hidden(id, pool_->append({{sequence_, 1}}));
    return monotonic_seconds() - begin;
  }

 private:
  static constexpr int64_t kVocabulary = 64;
  Transformer model_;
  std::unique_ptr<SequencePool> pool_;
  int64_t sequence_, tokens_ = 0;
};

// Of one layer like this: the difference of some layers and as many again, which no cache holds, in
// turns.
double time_layer(const ModelConfig& config, const WeightFormats& formats, int64_t layer,
                  double read) {
  constexpr double kCaches = 3;
  constexpr int kTurns = 40;
  const auto cache = static_cast<double>(describe_machine().cache);
  const auto count = static_cast<int64_t>(std::clamp(std::ceil(kCaches * cache / read), 1.0, 16.0));
  const auto layers = [&](int64_t number) {
    const ModelConfig alike = layers_like(config, layer, number);
    return Layers(alike, formats_like(formats, layer, shapes_of(alike, /*vocab_size=*/1)));
  };
  Layers some = layers(count), more = layers(2 * count);
  std::vector<double> differences;
  for (int turn = 0; turn < kTurns; ++turn) {
    const double first = some.time_token();
    differences.push_back(more.time_token() - first);
  }
  return std::max(0.0, median(std::move(differences))) / static_cast<double>(count);
}

// Of one row by a weight of these sizes.
double time_product(int64_t outputs, int64_t inputs, WeightFormat format) {
  constexpr int kTimed = 9;
  const PackedMatrix packed = {at::empty({outputs, packed_row_bytes(format, inputs)}, at::kByte),
                               format, inputs};
  fill(packed);
  const at::Tensor x = at::randn({1, inputs});
  const MapWeight weight(at::empty({outputs, inputs}, at::kMeta), packed);
  std::vector<double> times;
  for (int i = 0; i < kTimed; ++i) {
    const double begin = monotonic_seconds();
    linear_map(x, weight);
    times.push_back(monotonic_seconds() - begin);
  }
  return median(std::move(times));
}

double time_head(const ModelConfig& config, int64_t vocab_size, const WeightFormats& formats) {
  const WeightFormat wanted = config.tie_embeddings ? formats.of(kEmbeddingSite, "token_embedding")
                                                    : formats.of(config.sublayers(), "head");
  return time_product(vocab_size, config.width,
                      fits(wanted, config.width) ? wanted : WeightFormat::f16);
}

}  // namespace

InferenceSize inference_size(const ModelConfig& config, int64_t vocab_size,
                             const WeightFormats& formats, int64_t context) {
  InferenceSize size;
  const Transformer shapes = shapes_of(config, vocab_size);
  size.parameters = shapes.parameters().count();
  for (const Parameter& p : shapes.parameters().all()) {
    const double stored = stored_bytes(p, formats);
    size.weights += stored;
    size.read += read_bytes(p, formats, config);
    if (is_routed(p)) size.experts += stored;
    const bool is_packed = formats.of(p.site, p.role) != WeightFormat::f32;
    if (is_packed && p.role == "kv_b_proj")
      size.copies += 4.0 * static_cast<double>(p.tensor.numel());
  }
  const SequencePool pool(shapes.kept(), {.sequences = 1, .tokens = context},
                          at::Device(at::kMeta));
  size.kept = static_cast<double>(pool.bytes());
  return size;
}

double measure_weights_read(WeightFormat format) {
  const at::NoGradGuard not_recording;
  constexpr int64_t kInputs = 4096, kLeastBytes = int64_t{1} << 27, kMostBytes = int64_t{1} << 30;
  const int64_t bytes = std::clamp(3 * describe_machine().cache, kLeastBytes, kMostBytes);
  const int64_t row = packed_row_bytes(format, kInputs), outputs = bytes / row;
  return static_cast<double>(outputs * row) / time_product(outputs, kInputs, format);
}

double measure_token(const ModelConfig& config, int64_t vocab_size, const WeightFormats& formats) {
  const at::NoGradGuard not_recording;
  const std::vector<double> read = read_by_layers(config, formats);
  std::map<Kind, double> seconds_a_byte;
  double seconds = time_head(config, vocab_size, formats);
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const auto [found, is_new] = seconds_a_byte.emplace(kind_of(config, layer), 0);
    if (is_new) found->second = time_layer(config, formats, layer, read[layer]) / read[layer];
    seconds += found->second * read[layer];
  }
  return seconds;
}

}  // namespace attnres
