// Speed of decoding and of prompts with residual connections and with Block Attention Residuals
// (8 blocks), taking turns: bench_decode [OPTIONS]. Weights are random, depth weights too.
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/normal.h>
#include <ATen/ops/randint.h>
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <array>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "attnres/model/transformer.h"
#include "attnres/pretrained/model_directory.h"
#include "attnres/support/error.h"
#include "attnres/support/machine.h"
#include "bench/benchmark.h"

namespace attnres::bench {
namespace {

constexpr int64_t kBlocks = 8;

// By name: layers, width, heads, heads of keys and values, feed-forward width, vocabulary. Heads
// are tied.
const std::map<std::string, std::array<int64_t, 6>> kSizes = {
    {"2m", {8, 128, 4, 2, 352, 256}},
    {"20m", {12, 384, 6, 3, 1024, 256}},
    {"145m", {16, 768, 12, 12, 2048, 40960}}};

struct Options {
  std::vector<std::string> sizes = {"20m", "145m"}, weights = {"f32", "q8_0"};
  std::vector<int64_t> batches = {1, 8}, contexts = {128, 2048};
  int64_t tokens = 32;  // decoded in a round
  int rounds = 7, threads = 0;
};

ModelConfig config_of(const std::string& size, bool block) {
  const auto found = kSizes.find(size);
  require_usage(found != kSizes.end(), "--sizes: expected 2m, 20m or 145m, got {}", size);
  const auto& [layers, width, heads, kv_heads, ffn_width, vocabulary] = found->second;
  Json model = {{"layers", layers},
                {"width", width},
                {"heads", heads},
                {"kv_heads", kv_heads},
                {"ffn_width", ffn_width},
                {"tie_embeddings", true},
                {"depth_mixing", {{"type", block ? "block_attn_res" : "residual"}}}};
  if (block) model["depth_mixing"]["block_size"] = 2 * layers / kBlocks;
  return read_model_config(model);
}

// With depth weights that differ: else all that AttnRes computes is a mean.
std::unique_ptr<Transformer> make_model(const std::string& size, bool block, WeightFormat weights) {
  auto model = std::make_unique<Transformer>(config_of(size, block), kSizes.at(size)[5], 1);
  for (const Parameter& parameter : model->parameters().all()) {
    at::Tensor tensor = parameter.tensor;
    if (parameter.kind == ParameterKind::pseudo_query) tensor.normal_(0, 0.1);
  }
  if (weights == WeightFormat::f32) return model;
  const auto folder = std::filesystem::temp_directory_path() / "attnres-bench-decode";
  std::filesystem::create_directories(folder);
  save_model(*model, folder, 1024, {});
  model.reset();
  model = load_model(folder, {at::kFloat, at::kFloat, weights});
  std::filesystem::remove_all(folder);
  return model;
}

// A model that decodes some sequences of one context.
class Decoding {
 public:
  Decoding(const Transformer& model, int64_t batch, int64_t context, int64_t tokens)
      : model_(model), context_(context), tokens_(tokens) {
    pool_ = model.make_pool({.sequences = batch, .tokens = batch * (context + tokens)});
    for (int64_t i = 0; i < batch; ++i) {
      sequences_.push_back(pool_->add());
      prefill(sequences_.back());
    }
  }

  // Milliseconds a step, in which every sequence gets a token.
  double step() {
    const double ms = milliseconds([&] {
      for (int64_t i = 0; i < tokens_; ++i) {
        std::vector<Continuation> more;
        for (const int64_t sequence : sequences_) more.push_back({sequence, 1});
        const at::Tensor ids = at::randint(model_.vocab_size(), {std::ssize(more)}, at::kLong);
        model_.logits(model_.hidden(ids, pool_->append(more)));
      }
    });
    for (const int64_t sequence : sequences_) pool_->truncate(sequence, context_);
    return ms / static_cast<double>(tokens_);
  }

  // Milliseconds.
  double prompt() {
    pool_->truncate(sequences_[0], 0);
    return milliseconds([&] { prefill(sequences_[0]); });
  }

 private:
  void prefill(int64_t sequence) {
    const at::Tensor ids = at::randint(model_.vocab_size(), {context_}, at::kLong);
    model_.logits(model_.hidden(ids, pool_->append({{sequence, context_}}))[-1]);
  }

  const Transformer& model_;
  int64_t context_, tokens_;
  std::unique_ptr<SequencePool> pool_;
  std::vector<int64_t> sequences_;
};

int64_t weight_bytes(const Transformer& model) {
  int64_t bytes = 0;
  for (const Parameter& parameter : model.parameters().all()) {
    bytes += static_cast<int64_t>(parameter.packed.defined() ? parameter.packed.bytes.nbytes()
                                                             : parameter.tensor.nbytes());
  }
  return bytes;
}

// Of two ways in turns: medians, and the ratio of a round's second to its first.
template <class F>
void print_turns(const std::string& name, double scale, int64_t bytes, int rounds, const F& run) {
  std::vector<double> plain, block, ratios;
  for (int round = -1; round < rounds; ++round) {
    const double a = run(0), b = run(1);
    if (round < 0) continue;
    plain.push_back(a);
    block.push_back(b);
    ratios.push_back(b / a);
  }
  const Interval interval = median_interval(ratios);
  fmt::print("| {} | {:.1f} | {:.1f} | {:.3f} ({:.3f} to {:.3f}) |", name, scale / median(plain),
             scale / median(block), median(ratios), interval.low, interval.high);
  if (bytes > 0) fmt::print(" {:.1f} |", static_cast<double>(bytes) / median(plain) / 1e6);
  fmt::print("\n");
  std::fflush(stdout);
}

void measure(const Options& options, const std::string& size, const std::string& weights) {
  std::vector<std::unique_ptr<Transformer>> models;
  for (const bool block : {false, true}) {
    models.push_back(make_model(size, block, parse_weight_format(weights, "--weights")));
  }
  for (const int64_t context : options.contexts) {
    for (const int64_t batch : options.batches) {
      std::vector<std::unique_ptr<Decoding>> runs;
      for (const auto& model : models) {
        runs.push_back(std::make_unique<Decoding>(*model, batch, context, options.tokens));
      }
      const std::string name = fmt::format("{} | {} | {} | {}", size, weights, context, batch);
      print_turns(name, 1e3 * static_cast<double>(batch), weight_bytes(*models[0]), options.rounds,
                  [&](int i) { return runs[i]->step(); });
      if (batch != options.batches[0]) continue;
      print_turns(fmt::format("{} | {} | prompt of {} | 1", size, weights, context),
                  1e3 * static_cast<double>(context), 0, options.rounds,
                  [&](int i) { return runs[i]->prompt(); });
    }
  }
}

void run(int argc, char** argv) {
  CLI::App app("Speed of decoding with residual connections and with Block AttnRes.",
               "bench_decode");
  Options options;
  app.add_option("--sizes", options.sizes, "2m, 20m, 145m")->delimiter(',');
  app.add_option("--weights", options.weights, "f32, f16, bf16, q8_0, q4_0")->delimiter(',');
  app.add_option("--batches", options.batches, "Sequences at once")->delimiter(',');
  app.add_option("--contexts", options.contexts, "Tokens before those that are decoded")
      ->delimiter(',');
  app.add_option("--tokens", options.tokens, "Decoded in a round")->capture_default_str();
  app.add_option("--rounds", options.rounds, "Times that each is measured")->capture_default_str();
  app.add_option("--threads", options.threads, "Threads; all cores if not given");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    std::exit(app.exit(e));
  }
  if (options.threads > 0) at::set_num_threads(options.threads);
  const at::NoGradGuard not_recording;
  fmt::print(
      "{}, {} threads\n\n"
      "| model | weights | context | sequences | residual, tokens/s | Block | Block over residual "
      "| "
      "weights read, GB/s |\n| --- | --- | --- | --- | --- | --- | --- | --- |\n",
      describe_machine().cpu, at::get_num_threads());
  for (const std::string& size : options.sizes) {
    for (const std::string& weights : options.weights) measure(options, size, weights);
  }
}

}  // namespace
}  // namespace attnres::bench

int main(int argc, char** argv) {
  return attnres::bench::run_benchmark("bench_decode", [&] { attnres::bench::run(argc, argv); });
}
