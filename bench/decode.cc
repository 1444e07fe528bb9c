// Speed of decoding and of prompts with residual connections, with Block Attention Residuals
// (8 blocks) and with those where every site reads all sources again, taking turns:
// bench_decode [OPTIONS]. Weights are random, depth weights too.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/max.h>
#include <ATen/ops/normal.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/tensor.h>
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
#include "attnres/pretrained/save_model.h"
#include "attnres/support/error.h"
#include "attnres/support/machine.h"
#include "attnres/text/bytes.h"
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
  bool serve = false;
};

// `rereading` is Block AttnRes in a single pass a site: the same numbers as in two phases.
enum class Way { residual, block, rereading };
constexpr std::array kWays = {Way::residual, Way::block, Way::rereading};

ModelConfig config_of(const std::string& size, Way way) {
  const auto found = kSizes.find(size);
  require_usage(found != kSizes.end(), "--sizes: expected 2m, 20m or 145m, got {}", size);
  const auto& [layers, width, heads, kv_heads, ffn_width, vocabulary] = found->second;
  Json model = {{"layers", layers},
                {"width", width},
                {"heads", heads},
                {"kv_heads", kv_heads},
                {"ffn_width", ffn_width},
                {"tie_embeddings", true},
                {"depth_mixing", {{"type", way == Way::residual ? "residual" : "block_attn_res"}}}};
  if (way != Way::residual) model["depth_mixing"]["block_size"] = 2 * layers / kBlocks;
  // A window that drops no block, but is one to the mixer.
  if (way == Way::rereading) model["depth_mixing"]["window"] = 2 * layers - 1;
  return read_model_config(model);
}

// Depth weights that differ: else all that AttnRes computes is a mean.
void spread_depth_weights(const Transformer& model) {
  at::manual_seed(1);
  for (const Parameter& parameter : model.parameters().all()) {
    at::Tensor tensor = parameter.tensor;
    if (parameter.kind == ParameterKind::pseudo_query) tensor.normal_(0, 0.1);
  }
}

std::unique_ptr<Transformer> make_model(const std::string& size, Way way, WeightFormat weights) {
  auto model = std::make_unique<Transformer>(config_of(size, way), kSizes.at(size)[5], 1);
  spread_depth_weights(*model);
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

std::unique_ptr<Transformer> as_stored(const std::filesystem::path& model) {
  const ModelDirectory directory(model);
  return directory.load({at::kFloat, at::kFloat, directory.weight_formats()});
}

// Sequences that follow one prompt greedily, for bench/compare_decoding and compare_llama_cpp. A
// GGUF file's weights stay as they are stored.
class GreedyDecoding {
 public:
  GreedyDecoding(const std::filesystem::path& model, int64_t batch,
                 const std::vector<int64_t>& prompt, int64_t tokens)
      : model_(as_stored(model)), prompt_(at::tensor(prompt, at::kLong)) {
    pool_ = model_->make_pool({.sequences = batch, .tokens = batch * (prompt_.numel() + tokens)});
    for (int64_t i = 0; i < batch; ++i) sequences_.push_back(pool_->add());
  }

  // Milliseconds until all have read the prompt, and the largest logit after it.
  Json read_prompt() {
    at::Tensor logits;
    const double ms = milliseconds([&] { logits = after_prompt(); });
    return {{"ms", ms}, {"largest", {logits[0].max().item<double>()}}};
  }

  // Milliseconds a step, and the largest logit of the first sequence before each.
  Json decode(int64_t tokens) {
    at::Tensor logits = after_prompt();
    Json largest = Json::array();
    const double ms = milliseconds([&] {
      for (int64_t i = 0; i < tokens; ++i) {
        largest.push_back(logits[0].max().item<double>());
        logits = next(logits.argmax(-1), 1);
      }
    });
    return {{"ms", ms / static_cast<double>(tokens)}, {"largest", largest}};
  }

 private:
  at::Tensor after_prompt() {
    for (int64_t& sequence : sequences_) {
      pool_->free(sequence);
      sequence = pool_->add();
    }
    return next(prompt_.repeat({std::ssize(sequences_)}), prompt_.numel());
  }

  // Logits after each sequence's next tokens.
  at::Tensor next(const at::Tensor& ids_T, int64_t tokens) {
    std::vector<Continuation> more;
    for (const int64_t sequence : sequences_) more.push_back({sequence, tokens});
    const at::Tensor hidden_TD = model_->hidden(ids_T, pool_->append(more));
    return model_->logits(hidden_TD.unflatten(0, {-1, tokens}).select(1, -1));
  }

  std::unique_ptr<Transformer> model_;
  at::Tensor prompt_;
  std::unique_ptr<SequencePool> pool_;
  std::vector<int64_t> sequences_;
};

void serve_requests() {
  std::map<std::string, GreedyDecoding> open;
  serve([&](const Json& request) -> Json {
    if (request.contains("save")) {
      const std::filesystem::path folder = request.at("save").get<std::string>();
      const Transformer model(read_model_config(request.at("model")), request.at("vocabulary"), 1);
      spread_depth_weights(model);
      save_model_folder(folder, model, ByteTokenizer{}, request.at("context"));
    } else if (request.contains("open")) {
      open.try_emplace(request.at("open"), request.at("model").get<std::string>(),
                       request.at("batch"), request.at("prompt").get<std::vector<int64_t>>(),
                       request.at("tokens"));
    } else if (request.contains("close")) {
      open.erase(request.at("close"));
    } else if (request.contains("prompt")) {
      return open.at(request.at("prompt")).read_prompt();
    } else {
      return open.at(request.at("decode")).decode(request.at("tokens"));
    }
    return {{"done", true}};
  });
}

int64_t weight_bytes(const Transformer& model) {
  int64_t bytes = 0;
  for (const Parameter& parameter : model.parameters().all()) {
    bytes += static_cast<int64_t>(parameter.packed.defined() ? parameter.packed.bytes.nbytes()
                                                             : parameter.tensor.nbytes());
  }
  return bytes;
}

// Runs all ways in turns: prints medians, and the ratios of a round's others to its first.
template <class F>
void print_turns(const std::string& name, double scale, int64_t bytes, int rounds, const F& run) {
  std::array<std::vector<double>, kWays.size()> times, ratios;
  for (int round = -1; round < rounds; ++round) {
    std::array<double, kWays.size()> ms;
    for (size_t i = 0; i < kWays.size(); ++i) ms[i] = run(i);
    if (round < 0) continue;
    for (size_t i = 0; i < kWays.size(); ++i) {
      times[i].push_back(ms[i]);
      ratios[i].push_back(ms[i] / ms[0]);
    }
  }
  fmt::print("| {} |", name);
  for (const std::vector<double>& ms : times) fmt::print(" {:.1f} |", scale / median(ms));
  for (size_t i = 1; i < kWays.size(); ++i) {
    const Interval interval = median_interval(ratios[i]);
    fmt::print(" {:.3f} ({:.3f} to {:.3f}) |", median(ratios[i]), interval.low, interval.high);
  }
  if (bytes > 0) fmt::print(" {:.1f} |", static_cast<double>(bytes) / median(times[0]) / 1e6);
  fmt::print("\n");
  std::fflush(stdout);
}

void measure(const Options& options, const std::string& size, const std::string& weights) {
  std::vector<std::unique_ptr<Transformer>> models;
  for (const Way way : kWays) {
    models.push_back(make_model(size, way, parse_weight_format(weights, "--weights")));
  }
  for (const int64_t context : options.contexts) {
    for (const int64_t batch : options.batches) {
      std::vector<std::unique_ptr<Decoding>> runs;
      for (const auto& model : models) {
        runs.push_back(std::make_unique<Decoding>(*model, batch, context, options.tokens));
      }
      const std::string name = fmt::format("{} | {} | {} | {}", size, weights, context, batch);
      print_turns(name, 1e3 * static_cast<double>(batch), weight_bytes(*models[0]), options.rounds,
                  [&](size_t i) { return runs[i]->step(); });
      if (batch != options.batches[0]) continue;
      print_turns(fmt::format("{} | {} | prompt of {} | 1", size, weights, context),
                  1e3 * static_cast<double>(context), 0, options.rounds,
                  [&](size_t i) { return runs[i]->prompt(); });
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
  app.add_flag("--serve", options.serve, "Answer the requests of the bench/compare_* drivers");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    std::exit(app.exit(e));
  }
  if (options.threads > 0) at::set_num_threads(options.threads);
  const at::NoGradGuard not_recording;
  if (options.serve) return serve_requests();
  fmt::print(
      "{}, {} threads\n\n"
      "| model | weights | context | sequences | residual, tokens/s | Block | Block, rereading "
      "| Block over residual | rereading over residual | weights read, GB/s |\n"
      "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
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
