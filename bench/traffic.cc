// What depth mixing moves between memory and a core: bench_traffic [OPTIONS].
//
// Runs the kernels of every site of a model on counted storage (traffic.h), in the order in which
// attnres/depth/mechanisms/{block_attn_res,residual}.cc call them, and prints tensors of [T, D] per
// site beside Table 1 of the report (arXiv 2603.15031). Between two kernels the sublayers have run,
// so each begins with an empty cache. Nothing is timed.
#include "bench/traffic.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <string>

namespace attnres::bench {
namespace {

struct Options {
  int64_t tokens = 4096, share = 32, width = 512;
  size_t cache_kib = 1024;
};

struct Passes {
  Traffic forward, backward;
  Passes& operator+=(const Passes& other) {
    forward += other.forward;
    backward += other.backward;
    return *this;
  }
};

// Per pass over all sites; `library` is what tensor operations add, by their shapes.
struct ModelTraffic {
  Passes phase_one, phase_two, norm, library;
  Passes all() const {
    Passes sum = phase_one;
    for (const Passes& part : {phase_two, norm, library}) sum += part;
    return sum;
  }
};

constexpr Traffic kAddition = {.read = 2, .written = 1, .fetched = 1};

class Model {
 public:
  Model(const Options& options, int64_t sublayers) : options_(options), L_(sublayers) {}

  ModelTraffic residual() const {
    ModelTraffic model;
    for (int64_t l = 0; l <= L_; ++l) {
      const bool pending = l > 0, later = l < L_;
      model.norm += {counter().rms_norm_forward(pending), counter().rms_norm_backward(later)};
    }
    return model;
  }

  // Block AttnRes, and Full with a block size of 1.
  ModelTraffic attn_res(int64_t block_size) const {
    const auto root = static_cast<int64_t>(std::sqrt(static_cast<double>(L_)));
    const int64_t group_sites = std::max<int64_t>(1, root / block_size) * block_size;
    const auto finished_at = [&](int64_t site) { return 1 + site / block_size; };
    ModelTraffic model;
    // From the last group to the first, as the backward goes: all sources that a group reads, but
    // those that were finished in it and read by later groups too, have a gradient already.
    for (int64_t begin = L_ / group_sites * group_sites; begin >= 0; begin -= group_sites) {
      const int64_t end = std::min(begin + group_sites, L_ + 1);
      const int64_t earlier = begin == 0 ? 0 : finished_at(begin);
      int64_t started = end <= L_ ? finished_at(end) : 0;
      for (int64_t site = end - 1; site >= begin; --site) {
        const int64_t in_block = site % block_size;
        if (site == 0) {  // reads the embedding only; its gradient meets that of the other sites
          model.norm += {counter().rms_norm_forward(false), counter().rms_norm_backward(false)};
          model.library.backward += kAddition;
          continue;
        }
        if (in_block == 0 && block_size > 1) model.library.forward += kAddition;  // sealing a block
        const SiteTensors tensors = {.finished = finished_at(site) - earlier,
                                     .earlier = earlier > 0,
                                     .partial = in_block > 1,
                                     .pending = in_block > 0};
        const int64_t with_gradient = std::clamp<int64_t>(started - earlier, 0, tensors.finished);
        model.phase_two += {counter().phase_two_forward(tensors),
                            counter().phase_two_backward(tensors, site < L_, with_gradient)};
        started = std::max(started, finished_at(site));
      }
      if (earlier == 0) continue;
      const int64_t with_gradient = end <= L_ ? earlier : 0;
      model.phase_one += {counter().phase_one_forward(earlier, end - begin),
                          counter().phase_one_backward(earlier, end - begin, with_gradient)};
    }
    return model;
  }

 private:
  TrafficCounter counter() const {
    return {options_.tokens, options_.share, options_.width, options_.cache_kib << 10};
  }

  Options options_;
  int64_t L_;
};

void print_row(const std::string& name, const Passes& passes, int64_t sites,
               const std::string& table_1 = "") {
  fmt::print("{:<24}", name);
  for (const Traffic& all : {passes.forward, passes.backward}) {
    const Traffic site = all / static_cast<double>(sites);
    fmt::print("{:>8.2f}{:>9.2f}{:>9.2f}{:>8.2f} ", site.read, site.written,
               site.read + site.written, site.fetched);
  }
  fmt::print("  {}\n", table_1);
}

void print_attn_res(const std::string& name, const ModelTraffic& model, int64_t sites,
                    const std::string& table_1) {
  print_row(name, model.all(), sites, table_1);
  print_row("  phase 1", model.phase_one, sites);
  print_row("  phase 2", model.phase_two, sites);
  print_row(
      "  first site, sealing",
      [&] {
        Passes rest = model.norm;
        return rest += model.library;
      }(),
      sites);
}

void print(const Options& options) {
  fmt::print(
      "Tensors of [T, {}] between memory and a core, per site. Counted on {} of {} tokens, with a\n"
      "cache of {} KiB. Fetched: what ordinary stores bring in only to overwrite it.\n\n",
      options.width, options.share, options.tokens, options.cache_kib);
  fmt::print("{:<24}{:^34} {:^34}\n", "", "forward", "backward");
  fmt::print("{:<24}{}{}  Table 1, forward\n", "", "    read  written     both fetched ",
             "    read  written     both fetched ");
  for (const int64_t sublayers : {24, 128}) {
    const int64_t blocks = 8, block_size = sublayers / blocks, sites = sublayers + 1;
    const Model model(options, sublayers);
    fmt::print("L = {}\n", sublayers);
    print_row("Residual", model.residual().all(), sites, "3");
    print_attn_res(fmt::format("Block, N = {}, S = {}", blocks, block_size),
                   model.attn_res(block_size), sites,
                   fmt::format("N / S + 5 = {:.1f}",
                               5 + static_cast<double>(blocks) / static_cast<double>(block_size)));
    print_attn_res("Full", model.attn_res(1), sites,
                   fmt::format("S + N = {} with N = {}", block_size + blocks, blocks));
  }
}

}  // namespace
}  // namespace attnres::bench

int main(int argc, char** argv) {
  attnres::bench::Options options;
  CLI::App app("What depth mixing moves between memory and a core, counted and beside Table 1.");
  app.add_option("--width", options.width, "channels")->capture_default_str();
  app.add_option("--tokens", options.tokens, "tokens of a step, which decide what is streamed")
      ->capture_default_str();
  app.add_option("--share", options.share, "tokens that are counted")->capture_default_str();
  app.add_option("--cache-kib", options.cache_kib, "the core's own cache")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  attnres::bench::print(options);
}
