// Time to load a model against reading its file: bench_loading [OPTIONS].
//
// Makes model directories of 350 million parameters, stored in float32 and in bfloat16. Then, in
// turns and from the page cache: reading the file as cat does; reading it into memory that is new
// to the process, as that of parameters is; loading the model in float32, each time in a new
// process; loading the half of it that a pipeline stage has.
#include <ATen/Parallel.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>

#include "attnres/model/config.h"
#include "attnres/pretrained/model_directory.h"
#include "attnres/pretrained/save_model.h"
#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "attnres/support/machine.h"
#include "bench/benchmark.h"

namespace attnres::bench {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kLayers = 24, kVocabulary = 40960;

struct Options {
  fs::path folder;
  std::vector<int> threads = {1, 2};
  int rounds = 7;
  std::string load;
  SiteRange sites;
};

void make_directory(const fs::path& folder, at::ScalarType dtype) {
  const ModelConfig config =
      read_model_config({{"layers", kLayers},
                         {"width", 1024},
                         {"heads", 16},
                         {"kv_heads", 16},
                         {"ffn_width", 2816},
                         {"tie_embeddings", true},
                         {"depth_mixing", {{"type", "block_attn_res"}, {"block_size", 6}}}});
  const Transformer model(config, kVocabulary, /*seed=*/1);
  fs::create_directories(folder);
  save_model(model, folder, /*context=*/2048, /*document_ids=*/0, dtype);
  fmt::print("{}: {:.0f} million parameters, {:.0f} MB\n", c10::toString(dtype),
             model.parameters().count() / 1e6, fs::file_size(folder / "model.safetensors") / 1e6);
}

double read_milliseconds(const fs::path& path) {
  const InputFile file(path);
  std::vector<char> buffer(128 << 10);
  return milliseconds([&] {
    while (::read(file.descriptor(), buffer.data(), buffer.size()) > 0) {
    }
  });
}

double read_into_new_memory_milliseconds(const fs::path& path) {
  const InputFile file(path);
  const uint64_t bytes = file.bytes();
  void* const memory =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  require(memory != MAP_FAILED, "no {} bytes of memory", bytes);
  uint64_t at = 0;
  const double ms = milliseconds([&] {
    for (ssize_t count = 1; count > 0; at += count) {
      count = ::read(file.descriptor(), static_cast<char*>(memory) + at, bytes - at);
    }
  });
  ::munmap(memory, bytes);
  require(at == bytes, "{}: cannot be read", path.string());
  return ms;
}

// In a new process.
double load_milliseconds(const fs::path& folder, int threads, const SiteRange& sites) {
  const std::string command = fmt::format("'{}' --load '{}' --threads {} --first {} --last {}",
                                          fs::read_symlink("/proc/self/exe").string(),
                                          folder.string(), threads, sites.first, sites.last);
  FILE* output = ::popen(command.c_str(), "r");
  double result = 0;
  const bool read = output != nullptr && std::fscanf(output, "%lf", &result) == 1;
  require(output != nullptr && ::pclose(output) == 0 && read, "{}: failed", command);
  return result;
}

void measure(const Options& options, at::ScalarType dtype, int threads) {
  const fs::path folder = options.folder / c10::toString(dtype);
  const fs::path file = folder / "model.safetensors";
  std::vector<double> read, into_memory, load, half;
  read_milliseconds(file);  // so that it is in the page cache
  for (int round = 0; round < options.rounds; ++round) {
    read.push_back(read_milliseconds(file));
    into_memory.push_back(read_into_new_memory_milliseconds(file));
    load.push_back(load_milliseconds(folder, threads, {}));
    half.push_back(load_milliseconds(folder, threads, {kLayers, 2 * kLayers + 1}));
  }
  std::vector<double> ratios;
  for (size_t i = 0; i < load.size(); ++i) ratios.push_back(load[i] / into_memory[i]);
  const Interval interval = median_interval(ratios);
  fmt::print("| {} | {} | {:.0f} | {:.0f} | {:.0f} | {:.2f} | {:.2f} to {:.2f} | {:.0f} |\n",
             c10::toString(dtype), threads, median(read), median(into_memory), median(load),
             median(ratios), interval.low, interval.high, median(half));
  std::fflush(stdout);
}

void run(int argc, char** argv) {
  CLI::App app("Time to load a model against reading its file.", "bench_loading");
  Options options;
  app.add_option("--folder", options.folder, "Where the models are made")->capture_default_str();
  app.add_option("--threads", options.threads, "Numbers of threads")->delimiter(',');
  app.add_option("--rounds", options.rounds, "Rounds")->capture_default_str();
  app.add_option("--load", options.load, "Only load this model directory, and print milliseconds");
  app.add_option("--first", options.sites.first, "With --load: its first site");
  app.add_option("--last", options.sites.last, "With --load: the site after its last");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    std::exit(app.exit(e));
  }
  if (!options.load.empty()) {
    at::set_num_threads(options.threads.at(0));
    std::unique_ptr<Transformer> model;
    const double ms =
        milliseconds([&] { model = load_model(options.load, at::kFloat, options.sites); });
    fmt::print("{}\n", ms);
    return;
  }
  if (options.folder.empty()) options.folder = fs::temp_directory_path() / "bench_loading";
  fmt::print("{}\n", describe_machine().cpu);
  constexpr at::ScalarType kDtypes[] = {at::kFloat, at::kBFloat16};
  for (const at::ScalarType dtype : kDtypes) {
    make_directory(options.folder / c10::toString(dtype), dtype);
  }
  fmt::print("\n| stored as | threads | read, ms | into new memory, ms | load, ms ");
  fmt::print("| load / into new memory | 95 % | half, ms |\n");
  fmt::print("| --- | --- | --- | --- | --- | --- | --- | --- |\n");
  for (const at::ScalarType dtype : kDtypes) {
    for (const int threads : options.threads) measure(options, dtype, threads);
  }
  for (const at::ScalarType dtype : kDtypes) fs::remove_all(options.folder / c10::toString(dtype));
}

}  // namespace
}  // namespace attnres::bench

int main(int argc, char** argv) {
  return attnres::bench::run_benchmark("bench_loading", [&] { attnres::bench::run(argc, argv); });
}
