// Speed of the matrix products of a linear map by who computes them, taking turns:
// bench_matmul [OPTIONS]. What attnres/ops/matmul/provider.cc chooses rests on this table.
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/randn.h>
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "attnres/ops/matmul/products.h"
#include "attnres/support/error.h"
#include "attnres/support/machine.h"
#include "bench/benchmark.h"

namespace attnres::bench {
namespace {

constexpr std::array kProducts = {Product::output, Product::input_gradient,
                                  Product::weight_gradient};

std::vector<Provider> providers_of(Product which) {
  std::vector<Provider> providers = {Provider::libtorch, Provider::onednn};
  if (which == Product::output) providers.push_back(Provider::streaming);
  return providers;
}

struct Options {
  std::vector<int64_t> tokens = {1, 8, 64, 512, 4096};
  std::vector<std::string> shapes = {"256x688", "512x512", "512x1376", "1376x512", "1024x1024"};
  bool bfloat16 = false;
  int rounds = 7, threads = 0;
};

// K and N of "KxN".
std::pair<int64_t, int64_t> parse_shape(const std::string& text) {
  const size_t x = text.find('x');
  require_usage(x != std::string::npos, "--shapes: expected KxN, got {}", text);
  return {std::stoll(text.substr(0, x)), std::stoll(text.substr(x + 1))};
}

// GFLOP/s of one product by each provider.
std::vector<double> measure(Product which, const at::Tensor& a, const at::Tensor& b, double flops,
                            int rounds) {
  constexpr double kFlopsARound = 2e9;
  const int repeats = std::max(1, static_cast<int>(kFlopsARound / flops));
  const std::vector<Provider> providers = providers_of(which);
  std::vector<std::vector<double>> ms(providers.size());
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < providers.size(); ++i) {
      product(which, a, b, providers[i]);  // prepares it
      ms[i].push_back(milliseconds([&] {
                        for (int r = 0; r < repeats; ++r) product(which, a, b, providers[i]);
                      }) /
                      repeats);
    }
  }
  std::vector<double> speeds;
  for (const std::vector<double>& of_one : ms) speeds.push_back(flops / median(of_one) / 1e6);
  return speeds;
}

void print_row(int64_t M, int64_t K, int64_t N, at::ScalarType dtype, int rounds) {
  const at::Tensor x = at::randn({M, K}).to(dtype), weight = at::randn({N, K}).to(dtype),
                   grad = at::randn({M, N}).to(dtype);
  fmt::print("| {} | {} | {} |", M, K, N);
  for (const Product which : kProducts) {
    const at::Tensor& a = which == Product::output ? x : grad;
    const at::Tensor& b = which == Product::weight_gradient ? x : weight;
    const auto speeds = measure(which, a, b, 2.0 * static_cast<double>(M * K * N), rounds);
    const Provider chosen = provider_for(processor(), dtype, which, {.M = M, .N = N, .K = K});
    const std::vector<Provider> providers = providers_of(which);
    for (size_t i = 0; i < providers.size(); ++i) {
      fmt::print(" {:.0f}{} |", speeds[i], providers[i] == chosen ? " *" : "");
    }
  }
  fmt::print("\n");
  std::fflush(stdout);
}

void run(int argc, char** argv) {
  CLI::App app("Speed of matrix products by who computes them.", "bench_matmul");
  Options options;
  app.add_option("--tokens", options.tokens, "Rows of x")->delimiter(',');
  app.add_option("--shapes", options.shapes, "Inputs and outputs of maps, KxN")->delimiter(',');
  app.add_flag("--bfloat16", options.bfloat16, "In bfloat16 instead of float32");
  app.add_option("--rounds", options.rounds, "Times that each is measured")->capture_default_str();
  app.add_option("--threads", options.threads, "Threads; all cores if not given");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    std::exit(app.exit(e));
  }
  if (options.threads > 0) at::set_num_threads(options.threads);
  const at::NoGradGuard not_recording;
  const at::ScalarType dtype = options.bfloat16 ? at::kBFloat16 : at::kFloat;
  fmt::print("{}, {} threads; GFLOP/s of x W^T, g W and g^T x in {}; * is used\n\n",
             describe_machine().cpu, at::get_num_threads(),
             options.bfloat16 ? "bfloat16" : "float32");
  fmt::print("| M | K | N |");
  for (const char* which : {"x W^T", "g W", "g^T x"}) {
    fmt::print(" {} {} | oneDNN |", which, provider_name(Provider::libtorch, dtype));
    if (which == std::string_view("x W^T")) fmt::print(" streaming |");
  }
  fmt::print("\n|");
  for (int i = 0; i < 10; ++i) fmt::print(" --- |");
  fmt::print("\n");
  for (const int64_t tokens : options.tokens) {
    for (const std::string& shape : options.shapes) {
      const auto [K, N] = parse_shape(shape);
      print_row(tokens, K, N, dtype, options.rounds);
    }
  }
}

}  // namespace
}  // namespace attnres::bench

int main(int argc, char** argv) {
  return attnres::bench::run_benchmark("bench_matmul", [&] { attnres::bench::run(argc, argv); });
}
