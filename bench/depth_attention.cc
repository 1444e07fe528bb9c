// Speed of depth attention against the speed of memory: bench_depth_attention [OPTIONS].
//
// For every shape, the median time of a forward pass and of forward and backward; the bytes that
// such a pass cannot avoid, (N + 1) D T and (3 N + 2) D T floats; and the rate of these bytes as a
// fraction of what copying reaches on as many threads (each byte copied counts twice: read and
// written). Copies, forward and backward take turns, so that a machine whose speed drifts is fair
// to all. Operands rotate over more than four times the largest cache, results included.
//
// With --serve it answers requests instead, one JSON object a line (bench/README.md).
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_file.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <fmt/core.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include <CLI/CLI.hpp>
#include <cstring>
#include <fstream>
#include <optional>

#include "attnres/ops/depth_attention/depth_attention.h"
#include "attnres/support/error.h"
#include "attnres/support/machine.h"
#include "bench/benchmark.h"

namespace attnres::bench {
namespace {

constexpr double kEps = 1e-6;

int64_t rotation_bytes() {
  return 4 * describe_machine().cache;
}

struct Shape {
  int64_t tokens = 4096, width = 512, sources = 9;
  bool operator==(const Shape&) const = default;

  int64_t floats() const { return tokens * width; }  // in one tensor
};

enum class Pass { forward, both };

double bytes_moved(const Shape& shape, Pass pass) {
  const int64_t tensors = pass == Pass::forward ? shape.sources + 1 : 3 * shape.sources + 2;
  return 4.0 * static_cast<double>(tensors * shape.floats());
}

// Inputs of one call, and its results until these inputs come round again.
struct Operands {
  std::vector<at::Tensor> sources_NTD;
  at::Tensor output_gradient_TD;
  at::Tensor output_TD;
};

class DepthAttention {
 public:
  explicit DepthAttention(const Shape& shape)
      : shape_(shape),
        query_(at::randn({shape.width}).mul_(0.1).requires_grad_()),
        key_gain_(at::ones({shape.width}).requires_grad_()) {
    const int64_t copies = rotation_bytes() / (4 * shape.sources * shape.floats()) + 1;
    operands_.resize(copies);
    for (Operands& operands : operands_) {
      for (int64_t n = 0; n < shape.sources; ++n) {
        operands.sources_NTD.push_back(at::randn({shape.tokens, shape.width}).requires_grad_());
      }
      operands.output_gradient_TD = at::randn({shape.tokens, shape.width});
    }
    for (const Pass pass : {Pass::both, Pass::forward}) {
      for (int64_t i = 0; i < copies; ++i) run(pass);  // so that memory is there
    }
  }

  const Shape& shape() const { return shape_; }

  // Milliseconds of one pass.
  double run(Pass pass) {
    Operands& operands = operands_[next_++ % operands_.size()];
    operands.output_TD.reset();
    for (at::Tensor& source : operands.sources_NTD) source.mutable_grad().reset();
    query_.mutable_grad().reset();
    key_gain_.mutable_grad().reset();
    const at::AutoGradMode recording(pass == Pass::both);
    return milliseconds([&] {
      operands.output_TD = depth_attention(operands.sources_NTD, query_, key_gain_, kEps);
      if (pass == Pass::both) operands.output_TD.backward(operands.output_gradient_TD);
    });
  }

 private:
  Shape shape_;
  at::Tensor query_, key_gain_;
  std::vector<Operands> operands_;
  size_t next_ = 0;
};

// Reads sources, query, key gain and output gradient; writes the output and the gradients of
// sources, query and key gain: all float32, one after the other.
void compute_file(const Shape& shape, const std::string& in, const std::string& out) {
  const int64_t numbers = (shape.sources + 1) * shape.floats() + 2 * shape.width;
  const at::Tensor all = at::from_file(in, /*shared=*/false, numbers, at::kFloat);
  int64_t begin = 0;
  const auto take = [&](at::IntArrayRef sizes) {
    const int64_t size = c10::multiply_integers(sizes);
    begin += size;
    return all.narrow(0, begin - size, size).clone().view(sizes);
  };
  std::vector<at::Tensor> inputs;
  for (int64_t n = 0; n < shape.sources; ++n) inputs.push_back(take({shape.tokens, shape.width}));
  const std::vector<at::Tensor> sources = inputs;
  for (int i = 0; i < 2; ++i) inputs.push_back(take({shape.width}));
  for (at::Tensor& input : inputs) input.requires_grad_();
  const at::Tensor& query = inputs[inputs.size() - 2];
  const at::Tensor& key_gain = inputs[inputs.size() - 1];
  const at::Tensor output = depth_attention(sources, query, key_gain, kEps);
  output.backward(take({shape.tokens, shape.width}));

  std::vector<at::Tensor> results = {output.detach()};
  for (const at::Tensor& input : inputs) results.push_back(input.grad());
  std::ofstream file(out, std::ios::binary);
  for (const at::Tensor& result : results) {
    const at::Tensor dense = result.contiguous();
    file.write(static_cast<const char*>(dense.const_data_ptr()),
               static_cast<std::streamsize>(dense.nbytes()));
  }
  require(file.flush().good(), "{}: cannot be written", out);
}

void serve_requests() {
  std::optional<DepthAttention> benchmark;
  serve([&](const Json& request) -> Json {
    const Shape shape = {request.at("tokens"), request.at("width"), request.at("sources")};
    if (request.contains("inputs")) {
      compute_file(shape, request.at("inputs"), request.at("results"));
      return {{"done", true}};
    }
    if (!benchmark || !(benchmark->shape() == shape)) {
      benchmark.reset();
      benchmark.emplace(shape);
    }
    const Pass pass = request.at("pass") == "forward" ? Pass::forward : Pass::both;
    std::vector<double> ms;
    for (int i = request.at("repeats"); i > 0; --i) ms.push_back(benchmark->run(pass));
    return {{"ms", ms}};
  });
}

void copy_whole(char* to, const char* from, size_t size) {
  std::memcpy(to, from, size);
}

// Small enough that the library stores through the cache.
void copy_in_pieces(char* to, const char* from, size_t size) {
  constexpr size_t kPiece = 4 << 20;
  for (size_t i = 0; i < size; i += kPiece) {
    std::memcpy(to + i, from + i, std::min(kPiece, size - i));
  }
}

void copy_streaming(char* to, const char* from, size_t size) {
#ifdef __SSE2__
  for (size_t i = 0; i < size; i += 16) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + i),
                     _mm_load_si128(reinterpret_cast<const __m128i*>(from + i)));
  }
  _mm_sfence();
#else
  std::memcpy(to, from, size);
#endif
}

// Copying between two tensors that fit no cache, in each of the three ways.
class Copies {
 public:
  static constexpr std::pair<const char*, void (*)(char*, const char*, size_t)> kWays[] = {
      {"memcpy whole", copy_whole},
      {"memcpy in 4 MiB pieces", copy_in_pieces},
      {"streaming stores", copy_streaming}};

  explicit Copies(int threads)
      : threads_(threads),
        part_((rotation_bytes() + 1) / threads / 4096 * 4096 + 4096),
        from_(at::ones({part_ * threads}, at::kByte)),
        to_(at::zeros({part_ * threads}, at::kByte)) {}

  // Runs each way once.
  void run() {
    for (size_t way = 0; way < std::size(kWays); ++way) {
      ms_[way].push_back(milliseconds([&] {
        at::parallel_for(0, threads_, 1, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) {
            kWays[way].second(static_cast<char*>(to_.mutable_data_ptr()) + i * part_,
                              static_cast<const char*>(from_.const_data_ptr()) + i * part_, part_);
          }
        });
      }));
    }
  }

  // Median of 10^9 bytes a second, read and written.
  double rate(size_t way) const {
    return 2.0 * static_cast<double>(part_ * threads_) / (median(ms_[way]) * 1e6);
  }
  double best_rate() const { return std::max({rate(0), rate(1), rate(2)}); }

 private:
  int threads_;
  int64_t part_;
  at::Tensor from_, to_;
  std::vector<double> ms_[std::size(kWays)];
};

struct Options {
  std::vector<int> threads = {1, 2};
  std::vector<int64_t> widths = {256, 512, 1024}, sources = {2, 5, 9, 17, 33};
  int64_t tokens = 4096;
  int rounds = 15;
  bool serve = false;
};

void print_table(const Options& options, int threads) {
  at::set_num_threads(threads);
  fmt::print("\n{} thread{}\n\n", threads, threads == 1 ? "" : "s");
  fmt::print("| D | N | pass | ms | MB | GB/s | of copying |\n");
  fmt::print("| --- | --- | --- | --- | --- | --- | --- |\n");
  constexpr std::pair<const char*, Pass> kPasses[] = {{"forward", Pass::forward},
                                                      {"forward + backward", Pass::both}};
  for (const int64_t width : options.widths) {
    for (const int64_t sources : options.sources) {
      DepthAttention benchmark({options.tokens, width, sources});
      Copies copies(threads);
      std::vector<double> ms[std::size(kPasses)];
      for (int round = 0; round < options.rounds; ++round) {
        copies.run();
        for (size_t i = 0; i < std::size(kPasses); ++i) {
          for (int repeat = 0; repeat < 3; ++repeat) {
            ms[i].push_back(benchmark.run(kPasses[i].second));
          }
        }
      }
      for (size_t i = 0; i < std::size(kPasses); ++i) {
        const double bytes = bytes_moved(benchmark.shape(), kPasses[i].second);
        const double rate = bytes / (median(ms[i]) * 1e6);
        fmt::print("| {} | {} | {} | {:.2f} | {:.0f} | {:.1f} | {:.0f} % |\n", width, sources,
                   kPasses[i].first, median(ms[i]), bytes / 1e6, rate,
                   100 * rate / copies.best_rate());
      }
      std::fflush(stdout);
    }
  }
}

void print_copies(int threads, int rounds) {
  at::set_num_threads(threads);
  Copies copies(threads);
  for (int round = 0; round < rounds; ++round) copies.run();
  fmt::print("copying on {} thread{}, GB/s:", threads, threads == 1 ? "" : "s");
  for (size_t way = 0; way < std::size(Copies::kWays); ++way) {
    fmt::print("{} {} {:.1f}", way == 0 ? "" : ",", Copies::kWays[way].first, copies.rate(way));
  }
  fmt::print("\n");
}

void run(int argc, char** argv) {
  CLI::App app("Speed of depth attention against the speed of memory.", "bench_depth_attention");
  Options options;
  app.add_option("--threads", options.threads, "Numbers of threads")->delimiter(',');
  app.add_option("--widths", options.widths, "Model widths D")->delimiter(',');
  app.add_option("--sources", options.sources, "Numbers of sources N")->delimiter(',');
  app.add_option("--tokens", options.tokens, "Tokens T")->capture_default_str();
  app.add_option("--rounds", options.rounds, "Rounds of 3 copies and 3 + 3 passes; at least 3")
      ->capture_default_str();
  app.add_flag("--serve", options.serve, "Answer requests on standard input");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    std::exit(app.exit(e));
  }
  if (options.serve) return serve_requests();
  const Machine machine = describe_machine();
  fmt::print("{}, {} KiB of cache, kernel {}, {} tokens, float32\n", machine.cpu,
             machine.cache / 1024, depth_attention_instruction_sets().at(0), options.tokens);
  for (const int threads : options.threads) print_copies(threads, options.rounds);
  for (const int threads : options.threads) print_table(options, threads);
}

}  // namespace
}  // namespace attnres::bench

int main(int argc, char** argv) {
  return attnres::bench::run_benchmark("bench_depth_attention",
                                       [&] { attnres::bench::run(argc, argv); });
}
