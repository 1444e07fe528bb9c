// Speed of products with packed weights, in whole numbers and with unpacked ones, taking turns:
// bench_packed_products [OPTIONS]. From how many rows on attnres/ops/packed_weight/streaming_cpu.cc
// multiplies by panels, and attnres/ops/matmul/provider.cc unpacks, rests on this table.
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/randn.h>
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "attnres/ops/instruction_sets.h"
#include "attnres/ops/matmul/products.h"
#include "attnres/ops/packed_weight/packed_weight.h"
#include "attnres/ops/packed_weight/streaming_product.h"
#include "attnres/parameters/precision.h"
#include "attnres/support/machine.h"
#include "bench/benchmark.h"

namespace attnres::bench {
namespace {

struct Options {
  std::vector<int64_t> tokens = {1, 8, 16, 32, 64, 512};
  std::vector<std::string> weights = {"q8_0", "q4_0", "q4_K", "q6_K"};
  int64_t inputs = 768, outputs = 2304;
  std::string instructions;
  int rounds = 7, threads = 0;
};

void print_row(const Options& options, int64_t tokens, const std::string& name) {
  const PackedMatrix weight = pack_weight(at::randn({options.outputs, options.inputs}),
                                          parse_weight_format(name, "--weights"));
  const at::Tensor x = at::randn({tokens, options.inputs});
  const double flops = 2.0 * static_cast<double>(tokens * options.inputs * options.outputs);
  const int repeats = std::max(1, static_cast<int>(1e9 / flops));
  const auto timed = [&](const auto& multiply) {
    multiply();
    return milliseconds([&] {
             for (int r = 0; r < repeats; ++r) multiply();
           }) /
           repeats;
  };
  std::vector<double> streamed, unpacked;
  for (int round = 0; round < options.rounds; ++round) {
    streamed.push_back(timed([&] { streaming_products(x, {weight}); }));
    unpacked.push_back(timed([&] { product(Product::output, x, unpack_weight(weight)); }));
  }
  fmt::print("| {} | {} | {:.0f} | {:.0f} |\n", name, tokens, flops / median(streamed) / 1e6,
             flops / median(unpacked) / 1e6);
  std::fflush(stdout);
}

void run(int argc, char** argv) {
  CLI::App app("Speed of products with packed weights.", "bench_packed_products");
  Options options;
  app.add_option("--tokens", options.tokens, "Rows of x")->delimiter(',');
  app.add_option("--weights", options.weights, "Formats")->delimiter(',');
  app.add_option("--inputs", options.inputs, "K")->capture_default_str();
  app.add_option("--outputs", options.outputs, "N")->capture_default_str();
  app.add_option("--instructions", options.instructions,
                 "Our kernels with these: AVX2, say; the best if not given");
  app.add_option("--rounds", options.rounds, "Times that each is measured")->capture_default_str();
  app.add_option("--threads", options.threads, "Threads; all cores if not given");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    std::exit(app.exit(e));
  }
  if (options.threads > 0) at::set_num_threads(options.threads);
  std::optional<InstructionSet> only;
  if (!options.instructions.empty()) only.emplace(options.instructions);
  const at::NoGradGuard not_recording;
  fmt::print("{}{}, {} threads; GFLOP/s of x W^T, x [M, {}], W [{}, {}]\n\n",
             describe_machine().cpu, only ? " held to " + options.instructions : "",
             at::get_num_threads(), options.inputs, options.outputs, options.inputs);
  fmt::print("| weights | M | as they are | unpacked |\n| --- | --- | --- | --- |\n");
  for (const std::string& name : options.weights) {
    for (const int64_t tokens : options.tokens) print_row(options, tokens, name);
  }
}

}  // namespace
}  // namespace attnres::bench

int main(int argc, char** argv) {
  return attnres::bench::run_benchmark("bench_packed_products",
                                       [&] { attnres::bench::run(argc, argv); });
}
