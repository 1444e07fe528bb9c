// Speed and memory of whole training steps (forward, backward, gradient norm, AdamW) with residual
// connections, Block and Full Attention Residuals, or other mechanisms, taking turns:
// bench_training_step [OPTIONS].
//
// With --serve it answers requests instead, one JSON object a line (bench/README.md).
#include "attnres/train/step/training_step.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/tensor.h>
#include <c10/core/CPUAllocator.h>
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <filesystem>
#include <map>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "attnres/model/transformer.h"
#include "attnres/pretrained/model_directory.h"
#include "attnres/pretrained/save_model.h"
#include "attnres/support/json.h"
#include "attnres/support/machine.h"
#include "attnres/train/optimizers/optimizer.h"
#include "bench/benchmark.h"

namespace attnres::bench {
namespace {

// libtorch's allocator of CPU tensors, counting: bytes now, and the most there were.
class CountingAllocator final : public c10::Allocator {
 public:
  void install() {
    inner_ = c10::GetCPUAllocator();
    c10::SetCPUAllocator(this, /*priority=*/255);
  }

  int64_t now() const { return now_; }
  int64_t peak() const { return peak_; }
  void reset_peak() { peak_ = now_.load(); }

  c10::DataPtr allocate(size_t size) override {
    auto* block = static_cast<char*>(inner_->raw_allocate(kHeader + size));
    new (block) size_t(size);
    const int64_t after = now_ += static_cast<int64_t>(size);
    for (int64_t most = peak_; after > most && !peak_.compare_exchange_weak(most, after);) {
    }
    void* data = block + kHeader;
    return {data, data, release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return release; }
  void copy_data(void* to, const void* from, size_t size) const override {
    default_copy_data(to, from, size);
  }

 private:
  static constexpr size_t kHeader = 64;  // in front of a tensor: its bytes, and its alignment

  static void release(void* data);

  c10::Allocator* inner_ = nullptr;
  std::atomic<int64_t> now_ = 0, peak_ = 0;
};

CountingAllocator allocator;

void CountingAllocator::release(void* data) {
  char* block = static_cast<char*>(data) - kHeader;
  allocator.now_ -= static_cast<int64_t>(*reinterpret_cast<size_t*>(block));
  allocator.inner_->raw_deallocate(block);
}

struct MeasuredStep {
  StepResult result;
  double ms = 0;
  int64_t peak_bytes = 0;  // of tensors, above what was there before the step
};

// A model in training on one batch that is always the same.
class Training {
 public:
  Training(std::unique_ptr<Transformer> model, const at::Tensor& ids_BT, double learning_rate)
      : model_(std::move(model)),
        optimizer_(*model_, {}),
        step_(*model_, optimizer_, {}),
        batch_{ids_BT.slice(1, 0, -1).contiguous(), ids_BT.slice(1, 1).contiguous()},
        learning_rate_(learning_rate) {}
  Training(const Training&) = delete;
  Training& operator=(const Training&) = delete;

  MeasuredStep step() {
    MeasuredStep measured;
    const int64_t before = allocator.now();
    allocator.reset_peak();
    measured.ms = milliseconds([&] {
      step_.forward_backward(batch_);
      measured.result = step_.update(learning_rate_);
    });
    measured.peak_bytes = allocator.peak() - before;
    return measured;
  }

 private:
  std::unique_ptr<Transformer> model_;
  Optimizer optimizer_;
  TrainingStep step_;
  Batch batch_;
  double learning_rate_;
};

// As before training, but with depth weights that differ: else all that AttnRes computes is a mean.
std::unique_ptr<Transformer> make_model(const ModelConfig& config, int64_t vocab_size,
                                        Precision precision = {}) {
  constexpr uint64_t kSeed = 1;
  auto model = std::make_unique<Transformer>(config, vocab_size, kSeed, precision);
  const at::NoGradGuard not_recording;
  at::manual_seed(kSeed);
  for (const Parameter& parameter : model->parameters().all()) {
    at::Tensor tensor = parameter.tensor;
    if (parameter.kind == ParameterKind::pseudo_query) tensor.normal_(0, 0.1);
    if (parameter.kind == ParameterKind::norm_gain) tensor.normal_(1, 0.1);
  }
  return model;
}

void serve_requests() {
  std::map<std::string, Training> open;
  serve([&](const Json& request) -> Json {
    if (request.contains("save")) {
      const std::filesystem::path folder = request.at("save").get<std::string>();
      const ModelConfig config = read_model_config(request.at("model"));
      std::filesystem::create_directories(folder);
      save_model(*make_model(config, request.at("vocabulary")), folder, request.at("context"),
                 /*document_ids=*/0);
    } else if (request.contains("open")) {
      const at::Tensor ids = at::tensor(request.at("ids").get<std::vector<int64_t>>(), at::kLong);
      const Precision precision = parse_precision(request.at("precision"), "precision");
      open.try_emplace(request.at("open"),
                       load_model(request.at("model").get<std::string>(), precision),
                       ids.view({request.at("batch"), -1}), request.at("learning_rate"));
    } else {
      Training& training = open.at(request.at("step"));
      Json reply = {{"ms", Json::array()}};
      for (int i = request.at("repeats"); i > 0; --i) {
        const MeasuredStep step = training.step();
        reply["ms"].push_back(step.ms);
        reply["loss"].push_back(step.result.loss);
        reply["gradient_norm"].push_back(step.result.gradient_norm);
      }
      return reply;
    }
    return {{"done", true}};
  });
}

struct Options {
  std::vector<int64_t> widths = {256, 512};
  int64_t layers = 12, block_size = 3, vocabulary = 256, batch = 8, context = 512, head_width = 64;
  int rounds = 15, threads = 0;
  std::vector<std::string> precisions = {kFloat32Precision};
  std::string mixings;
  bool serve = false;
};

struct Arm {
  std::string name;
  Json depth_mixing;
  std::string precision = kFloat32Precision;
  std::unique_ptr<Training> training = nullptr;
  std::vector<double> ms = {}, ratios = {}, over_first_precision = {};
  int64_t peak_bytes = 0;
};

// Residual first, which the others are compared with; in each precision.
std::vector<Arm> arms_of(const Options& options) {
  std::vector<std::pair<std::string, Json>> mixings = {{"residual", {{"type", "residual"}}}};
  if (options.mixings.empty()) {
    mixings.push_back({"block", {{"type", "block_attn_res"}, {"block_size", options.block_size}}});
    mixings.push_back({"full", {{"type", "attn_res"}}});
  } else {
    const Json named = read_json(options.mixings);
    for (const auto& [name, depth_mixing] : named.items()) {
      if (depth_mixing != mixings[0].second) mixings.push_back({name, depth_mixing});
    }
  }
  std::vector<Arm> arms;
  for (const std::string& precision : options.precisions) {
    for (const auto& [name, depth_mixing] : mixings)
      arms.push_back({name, depth_mixing, precision});
  }
  return arms;
}

void print_table(const Options& options, int64_t width) {
  std::vector<Arm> arms = arms_of(options);
  const at::Tensor ids_BT =
      at::randint(options.vocabulary, {options.batch, options.context + 1}, at::kLong);
  for (Arm& arm : arms) {
    const ModelConfig config = read_model_config({{"layers", options.layers},
                                                  {"width", width},
                                                  {"heads", width / options.head_width},
                                                  {"kv_heads", width / options.head_width / 2},
                                                  {"depth_mixing", arm.depth_mixing}});
    const Precision precision = parse_precision(arm.precision, "--precisions");
    arm.training = std::make_unique<Training>(make_model(config, options.vocabulary, precision),
                                              ids_BT, /*learning_rate=*/1e-4);
    arm.training->step();  // so that memory is there
  }
  const size_t mixings = arms.size() / options.precisions.size();
  const auto residual_of = [&](size_t i) -> const Arm& { return arms[i / mixings * mixings]; };
  for (int round = 0; round < options.rounds; ++round) {
    for (size_t i = 0; i < arms.size(); ++i) {
      Arm& arm = arms[i];
      const MeasuredStep step = arm.training->step();
      arm.ms.push_back(step.ms);
      arm.ratios.push_back(step.ms / residual_of(i).ms.back());
      arm.over_first_precision.push_back(arms[i % mixings].ms.back() / step.ms);
      arm.peak_bytes = std::max(arm.peak_bytes, step.peak_bytes);
    }
  }
  const double tokens = static_cast<double>(options.batch * options.context);
  for (size_t i = 0; i < arms.size(); ++i) {
    const Arm& arm = arms[i];
    const Interval interval = median_interval(arm.ratios);
    const double more = static_cast<double>(arm.peak_bytes - residual_of(i).peak_bytes);
    const double tensor_bytes =
        tokens * static_cast<double>(width) * (arm.precision == kFloat32Precision ? 4 : 2);
    fmt::print(
        "| {} | {} | {} | {:.1f} | {:.0f} | {:.4f} | {:.4f} to {:.4f} | {:.2f} | {:.0f} | {:.1f} "
        "|\n",
        width, arm.precision, arm.name, median(arm.ms), tokens / median(arm.ms) * 1e3,
        median(arm.ratios), interval.low, interval.high, median(arm.over_first_precision),
        static_cast<double>(arm.peak_bytes) / (1 << 20), more / tensor_bytes);
  }
  std::fflush(stdout);
}

void run(int argc, char** argv) {
  CLI::App app("Speed and memory of whole training steps, residual and with depth attention.",
               "bench_training_step");
  Options options;
  app.add_option("--widths", options.widths, "Model widths, multiples of two heads")
      ->delimiter(',');
  app.add_option("--layers", options.layers, "Transformer layers")->capture_default_str();
  app.add_option("--block-size", options.block_size, "Sublayers a block")->capture_default_str();
  app.add_option("--vocabulary", options.vocabulary, "Token ids")->capture_default_str();
  app.add_option("--batch", options.batch, "Sequences a step")->capture_default_str();
  app.add_option("--context", options.context, "Tokens a sequence")->capture_default_str();
  app.add_option("--rounds", options.rounds, "Steps of each model; at least 7 for an interval")
      ->capture_default_str();
  app.add_option("--threads", options.threads, "Threads; all cores if not given");
  app.add_option("--head-width", options.head_width, "Channels of an attention's head")
      ->capture_default_str();
  app.add_option("--mixings", options.mixings,
                 "A JSON file with names and model.depth_mixing, to compare with residual instead");
  app.add_option("--precisions", options.precisions, "float32, bfloat16, or both")
      ->delimiter(',')
      ->check(CLI::IsMember({kFloat32Precision, kBfloat16Precision}));
  app.add_flag("--serve", options.serve, "Answer requests on standard input");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    std::exit(app.exit(e));
  }
  if (options.threads > 0) at::set_num_threads(options.threads);
  allocator.install();
  if (options.serve) return serve_requests();
  fmt::print("{}, {} threads; {} Transformer layers, blocks of {} sublayers, {} x {} tokens\n\n",
             describe_machine().cpu, at::get_num_threads(), options.layers, options.block_size,
             options.batch, options.context);
  fmt::print(
      "| D | precision | mixing | ms | tokens/s | over residual | 95 % interval | faster than {} "
      "| MiB | more [T, D] tensors |\n"
      "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
      options.precisions.at(0));
  for (const int64_t width : options.widths) print_table(options, width);
  fmt::print(
      "\nms: median of {} steps that take turns. Over residual: median of the ratios of\n"
      "neighbouring steps. MiB: the most that tensors held during a step beyond weights and "
      "AdamW's\n"
      "moments, and how much more than residual that is, in tensors of one number a token and "
      "channel.\n",
      options.rounds);
}

}  // namespace
}  // namespace attnres::bench

int main(int argc, char** argv) {
  return attnres::bench::run_benchmark("bench_training_step",
                                       [&] { attnres::bench::run(argc, argv); });
}
