// Memory of the depth state while a prompt is read in pieces: bench_prompt_memory [OPTIONS].
//
// In a model with Block Attention Residuals, the most bytes of tensors that are alive between two
// sites, against what has to be there in its last block: the embedding and the blocks before it, N
// in all, and of its S sites phase 1 of those to come and the output of the one that ran.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/randint.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "attnres/model/transformer.h"
#include "attnres/support/format.h"
#include "bench/benchmark.h"

namespace attnres::bench {
namespace {

constexpr int64_t kLayers = 16, kBlocks = 8, kVocabulary = 256;

struct Options {
  int64_t tokens = 2048, width = 512;
  std::vector<int64_t> pieces = {2048, 512, 128};
};

Transformer make_model(const Options& options) {
  return Transformer(
      read_model_config({{"layers", kLayers},
                         {"width", options.width},
                         {"heads", options.width / 64},
                         {"kv_heads", options.width / 256},
                         {"ffn_width", options.width},
                         {"tie_embeddings", true},
                         {"depth_mixing", {{"type", "block_attn_res"}, {"num_blocks", kBlocks}}}}),
      kVocabulary, 1);
}

// Bytes of tensors that are alive, of those made since.
class LiveBytes : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override {
    bytes_ += bytes;
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t bytes() const { return bytes_; }

 private:
  int64_t bytes_ = 0;
};

// Bytes at most between two sites, while a prompt is read.
int64_t bytes_of_reading(const Transformer& model, const Options& options, int64_t piece) {
  const auto pool = model.make_pool({.tokens = options.tokens});
  const int64_t sequence = pool->add();
  const at::Tensor ids_T = at::randint(kVocabulary, {options.tokens}, at::kLong);
  int64_t most = 0;
  for (int64_t done = 0; done < options.tokens; done += piece) {
    const int64_t count = std::min(piece, options.tokens - done);
    const auto live = std::make_shared<LiveBytes>();
    const c10::DebugInfoGuard counting(c10::DebugInfoKind::PROFILER_STATE, live);
    DepthState state = model.embed(ids_T.narrow(0, done, count), pool->append({{sequence, count}}));
    for (int site = 0; site < model.sublayers(); ++site) {
      model.run(state, site + 1);
      most = std::max(most, live->bytes());
    }
  }
  return most;
}

void run(int argc, char** argv) {
  CLI::App app("Memory of the depth state while a prompt is read in pieces.",
               "bench_prompt_memory");
  Options options;
  app.add_option("--tokens", options.tokens, "Of the prompt")->capture_default_str();
  app.add_option("--width", options.width, "Of the model")->capture_default_str();
  app.add_option("--pieces", options.pieces, "Tokens of a piece")->delimiter(',');
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    std::exit(app.exit(e));
  }
  const at::NoGradGuard not_recording;
  const Transformer model = make_model(options);
  fmt::print("{} tokens, width {}, {} layers, {} blocks, float32\n\n", options.tokens,
             options.width, kLayers, kBlocks);
  fmt::print(
      "| tokens a piece | blocks, N T d | with phase 1, (N + S) T d | measured | ratio |\n"
      "| --- | --- | --- | --- | --- |\n");
  for (const int64_t piece : options.pieces) {
    const auto number = static_cast<double>(piece * options.width) * sizeof(float);
    const double blocks = kBlocks * number;
    const double expected = blocks + 2.0 * kLayers / kBlocks * number;
    const auto measured = static_cast<double>(bytes_of_reading(model, options, piece));
    fmt::print("| {} | {} | {} | {} | {:.3f} |\n", piece, format_bytes(blocks),
               format_bytes(expected), format_bytes(measured), measured / expected);
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace attnres::bench

int main(int argc, char** argv) {
  return attnres::bench::run_benchmark("bench_prompt_memory",
                                       [&] { attnres::bench::run(argc, argv); });
}
