// Time to make batches of tokens: bench_batches [OPTIONS].
//
// In turns, of as many tokens: in memory; mapped, of 2 and of 4 bytes, from the page cache; each in
// the order of training, shuffled, and packed by documents. And plain reading: the same tokens
// copied one after another into as large a batch.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "attnres/data/token_file_writer.h"
#include "attnres/data/token_folder.h"
#include "attnres/data/train_batches.h"
#include "attnres/support/random.h"
#include "bench/benchmark.h"

namespace attnres::bench {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kVocabulary = 50257;
constexpr int32_t kEnd = 50256;
constexpr int64_t kDocument = 600;  // tokens, in the mean

struct Options {
  fs::path folder;
  int64_t tokens = 100'000'000, context = 1024, rows = 16, steps = 200;
  int rounds = 7;
};

std::vector<uint32_t> random_tokens(int64_t count) {
  const RandomStream random(1, "tokens");
  std::vector<uint32_t> tokens(count);
  for (int64_t i = 0; i < count; ++i) {
    const bool ends = random.below(kDocument, 2 * i) == 0;
    tokens[i] = ends ? kEnd : static_cast<uint32_t>(random.below(kEnd, 2 * i + 1));
  }
  return tokens;
}

TrainingTokens mapped(const fs::path& folder, const std::vector<uint32_t>& tokens, int width) {
  fs::create_directories(folder);
  TokenFileWriter writer(folder, 0, width);
  writer.add(tokens, 0, /*ends_document=*/false);
  const TokenIndex index = {.width = width, .files = {writer.finish()}, .finished = true};
  return open_token_folder(folder, index);
}

TrainBatches batches_of(const TrainingTokens& tokens, const Options& options, Packing packing) {
  return {{{tokens}},
          {.context = options.context,
           .rows = options.rows,
           .vocab_size = kVocabulary,
           .end_of_document = kEnd,
           .packing = packing,
           .seed = 1}};
}

void run(const Options& options) {
  const std::vector<uint32_t> tokens = random_tokens(options.tokens);
  const TrainingTokens in_memory(std::vector<int32_t>(tokens.begin(), tokens.end()));
  const TrainingTokens two = mapped(options.folder / "two", tokens, 2);
  const TrainingTokens four = mapped(options.folder / "four", tokens, 4);
  std::vector<std::pair<std::string, TrainBatches>> arms;
  arms.emplace_back("in memory", batches_of(in_memory, options, Packing::stream));
  arms.emplace_back("mapped, 2 bytes", batches_of(two, options, Packing::stream));
  arms.emplace_back("mapped, 4 bytes", batches_of(four, options, Packing::stream));
  arms.emplace_back("mapped, 2 bytes, documents", batches_of(two, options, Packing::documents));

  const int64_t batch_tokens = options.rows * options.context;
  std::vector<int64_t> inputs(batch_tokens), targets(batch_tokens);
  const auto read_plainly = [&] {
    for (int64_t step = 0; step < options.steps; ++step) {
      const int64_t places = options.tokens / (batch_tokens + 1);
      const uint32_t* first = tokens.data() + step % places * (batch_tokens + 1);
      std::copy_n(first, batch_tokens, inputs.data());
      std::copy_n(first + 1, batch_tokens, targets.data());
    }
  };
  std::map<std::string, std::vector<double>> times;
  for (int round = 0; round < options.rounds; ++round) {
    times["plain reading"].push_back(milliseconds(read_plainly));
    for (const auto& [name, batches] : arms) {
      times[name].push_back(milliseconds([&, &batches = batches] {
        for (int64_t step = 1; step <= options.steps; ++step) {
          batches.batch(round * options.steps + step, 0, options.rows);
        }
      }));
    }
  }
  fmt::print("{:.0f} million tokens; batches of {} rows of {}\n\n", options.tokens / 1e6,
             options.rows, options.context);
  fmt::print("| tokens | ms a batch | million tokens/s |\n| --- | --- | --- |\n");
  for (const auto& [name, all] : times) {
    const double ms = median(all) / static_cast<double>(options.steps);
    fmt::print("| {} | {:.3f} | {:.0f} |\n", name, ms,
               static_cast<double>(batch_tokens) / ms / 1e3);
  }
}

}  // namespace
}  // namespace attnres::bench

int main(int argc, char** argv) {
  using namespace attnres::bench;
  Options options;
  CLI::App app("Time to make batches of tokens, in memory and mapped, in turns.", "bench_batches");
  app.add_option("folder", options.folder, "where to write the tokens")->required();
  app.add_option("--tokens", options.tokens)->capture_default_str();
  app.add_option("--context", options.context)->capture_default_str();
  app.add_option("--rows", options.rows)->capture_default_str();
  app.add_option("--steps", options.steps, "batches a round")->capture_default_str();
  app.add_option("--rounds", options.rounds)->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  return run_benchmark("bench_batches", [&] { run(options); });
}
