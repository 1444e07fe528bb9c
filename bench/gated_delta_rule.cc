// Speed of the gated delta rule's forms: bench_gated_delta_rule [OPTIONS].
//
// For every shape, the median time of each form, and the medians of the ratios of a round: token by
// token in tensor operations against chunks, and, forward alone, chunks against the kernel. The
// forms take turns, so that a machine whose speed drifts is fair to all.
#include "attnres/ops/gated_delta_rule/gated_delta_rule.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <fmt/core.h>

#include <CLI/CLI.hpp>

#include "attnres/support/machine.h"
#include "bench/benchmark.h"

namespace attnres::bench {
namespace {

using Form = GatedDeltaRuleOutput (*)(const GatedDeltaRuleInputs&);

struct Options {
  std::vector<int> threads = {1, 2};
  std::vector<int64_t> tokens = {2048}, head_widths = {64, 128};
  int64_t batch = 1, heads = 4;
  int rounds = 7;
};

enum class Pass { forward, both };

class GatedDeltaRule {
 public:
  GatedDeltaRule(int64_t B, int64_t T, int64_t H, int64_t K)
      : inputs_{.q = at::randn({B, T, H, K}),
                .k = at::randn({B, T, H, K}),
                .v = at::randn({B, T, H, K}),
                .log_decay = -at::rand({B, T, H, K}),
                .beta = at::rand({B, T, H})},
        output_gradient_(at::randn({B, T, H, K})) {
    inputs_.q.div_(inputs_.q.norm(2, -1, true));
    inputs_.k.div_(inputs_.k.norm(2, -1, true));
    for (Tensor* input : leaves()) input->requires_grad_();
  }

  double run(Form form, Pass pass) {
    for (Tensor* input : leaves()) input->mutable_grad().reset();
    const at::AutoGradMode recording(pass == Pass::both);
    return milliseconds([&] {
      const Tensor o = form(inputs_).o;
      if (pass == Pass::both) o.backward(output_gradient_);
    });
  }

 private:
  using Tensor = at::Tensor;

  std::vector<Tensor*> leaves() {
    return {&inputs_.q, &inputs_.k, &inputs_.v, &inputs_.log_decay, &inputs_.beta};
  }

  GatedDeltaRuleInputs inputs_;
  Tensor output_gradient_;
};

std::string ratio_and_interval(const std::vector<double>& slow, const std::vector<double>& fast) {
  std::vector<double> ratios;
  for (size_t i = 0; i < slow.size(); ++i) ratios.push_back(slow[i] / fast[i]);
  const Interval interval = median_interval(ratios);
  return fmt::format("{:.2f} | {:.2f} to {:.2f}", median(ratios), interval.low, interval.high);
}

void print_table(const Options& options, int threads) {
  at::set_num_threads(threads);
  fmt::print("\n{} thread{}\n\n", threads, threads == 1 ? "" : "s");
  fmt::print(
      "| K = V | T | pass | recurrent, ms | chunked, ms | kernel, ms | recurrent / chunked | 95 % "
      "| "
      "chunked / kernel | 95 % |\n");
  fmt::print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
  constexpr std::pair<const char*, Pass> kPasses[] = {{"forward", Pass::forward},
                                                      {"forward + backward", Pass::both}};
  for (const int64_t width : options.head_widths) {
    for (const int64_t tokens : options.tokens) {
      GatedDeltaRule benchmark(options.batch, tokens, options.heads, width);
      for (const auto& [name, pass] : kPasses) {
        std::vector<double> recurrent, chunked, kernel;
        for (int round = -1; round < options.rounds; ++round) {
          if (round == 0) {  // the first was so that memory is there
            for (auto* times : {&recurrent, &chunked, &kernel}) times->clear();
          }
          recurrent.push_back(benchmark.run(gated_delta_rule_recurrent, pass));
          chunked.push_back(benchmark.run(gated_delta_rule_chunked, pass));
          if (pass == Pass::forward) kernel.push_back(benchmark.run(gated_delta_rule, pass));
        }
        const bool has_kernel = !kernel.empty();
        fmt::print("| {} | {} | {} | {:.2f} | {:.2f} | {} | {} | {} |\n", width, tokens, name,
                   median(recurrent), median(chunked),
                   has_kernel ? fmt::format("{:.2f}", median(kernel)) : "",
                   ratio_and_interval(recurrent, chunked),
                   has_kernel ? ratio_and_interval(chunked, kernel) : " | ");
        std::fflush(stdout);
      }
    }
  }
}

void run(int argc, char** argv) {
  CLI::App app("Speed of the gated delta rule's forms.", "bench_gated_delta_rule");
  Options options;
  app.add_option("--threads", options.threads, "Numbers of threads")->delimiter(',');
  app.add_option("--tokens", options.tokens, "Tokens T")->delimiter(',');
  app.add_option("--head-widths", options.head_widths, "Head widths K = V")->delimiter(',');
  app.add_option("--batch", options.batch, "Sequences B")->capture_default_str();
  app.add_option("--heads", options.heads, "Heads H")->capture_default_str();
  app.add_option("--rounds", options.rounds, "Rounds, after one that does not count")
      ->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    std::exit(app.exit(e));
  }
  fmt::print("{}, {} sequences, {} heads, float32\n", describe_machine().cpu, options.batch,
             options.heads);
  for (const int threads : options.threads) print_table(options, threads);
}

}  // namespace
}  // namespace attnres::bench

int main(int argc, char** argv) {
  return attnres::bench::run_benchmark("bench_gated_delta_rule",
                                       [&] { attnres::bench::run(argc, argv); });
}
