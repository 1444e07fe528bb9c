// How much of a GPU's memory bandwidth its kernels reach: the bytes that each must move, over its
// time, beside a copy on the same GPU. Built with ATTNRES_CUDA=ON as build/bench_gpu_kernels.
//
//   bench_gpu_kernels [--once] [WIDTH..]     1024, 2048 and 4096 if none is given
//
// --once calls every kernel once, for a profiler.
//
// A row is a kernel: the median of its times, gigabytes a second, and the share of the copy's.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "attnres/ops/depth_attention/cuda.h"
#include "attnres/ops/rms_norm/cuda.h"
#include "attnres/ops/rotary/cuda.h"
#include "attnres/ops/swiglu/cuda.h"
#include "bench/gpu/timing.h"

namespace attnres::gpu {
namespace {

constexpr int64_t kNumbers = int64_t{1} << 25;  // of a tensor: more than caches hold
constexpr int64_t kSources = 8, kSites = 8;

template <class Storage>
class Kernels {
 public:
  Kernels(int64_t width, double copy) : D_(width), T_(kNumbers / width), copy_(copy) {}

  void run() {
    phase_one();
    phase_two();
    elementary();
  }

 private:
  static constexpr const char* kName = sizeof(Storage) == 4 ? "float32" : "bfloat16";

  // `rows` of Storage and `floats` of float32, [T, D] each, are read or written.
  template <class F>
  void report(const char* kernel, double rows, double floats, const F& call) {
    const double time = milliseconds([&] {
      if (!call()) {
        std::fprintf(stderr, "%s: there is no such kernel\n", kernel);
        std::exit(1);
      }
    });
    const double rate = 1e-6 * static_cast<double>(kNumbers) *
                        (rows * sizeof(Storage) + floats * sizeof(float)) / time;
    std::printf("%-9s %5ld  %-34s %8.4f ms %7.0f GB/s %6.1f %%\n", kName, static_cast<long>(D_),
                kernel, time, rate, 100 * rate / copy_);
    std::fflush(stdout);
  }

  void phase_one() {
    Memory memory;
    const auto sources = memory.many<Storage>(kSources, kNumbers);
    const auto outputs = memory.many<Storage>(kSites, kNumbers);
    const auto slots = memory.many<float>(kSources, kNumbers);
    const auto rms = memory.many<float>(kSources, T_);
    auto* queries = memory.rows<float>(kSites * D_);
    auto *max = memory.rows<float>(kSites * T_), *sum = memory.rows<float>(kSites * T_);
    auto* scores = memory.rows<float>(kSites * kSources * T_);
    auto* weights = memory.rows<float>(kSites * kSources * T_);
    bool known[kSources] = {}, accumulate[kSources];
    std::fill_n(known, kSources - 1, true);
    std::fill_n(accumulate, kSources, true);
    const kernel::DepthAttentionInputs<Storage> inputs{sources.data(), queries, kSources,
                                                       kSites,         T_,      D_};
    report("phase 1 forward, 8 sources 8 sites", kSources + kSites, 0, [&] {
      return depth_attention_on_gpu<Storage>(
          {inputs, 1e-6, false, rms.data(), known, outputs.data(), max, sum, scores, weights},
          stream);
    });
    auto* partial_sums = memory.rows<float>(runs_of_tokens(T_, D_) * kSites * D_);
    auto* grad_queries = memory.rows<float>(kSites * D_);
    const std::vector<Storage*> none(kSources, nullptr);
    const bool floats = sizeof(Storage) == 4;
    report("phase 1 backward", kSources + kSites, 2 * kSources, [&] {
      const kernel::DepthAttentionBackward<Storage> op{
          .inputs = inputs,
          .inverse_rms_N = rms.data(),
          .scores_SNT = scores,
          .weights_SNT = weights,
          .grad_outputs_S = outputs.data(),
          .grad_sum_ST = nullptr,
          .grad_weights_SNT = nullptr,
          .grad_sources_N = floats ? reinterpret_cast<Storage* const*>(slots.data()) : none.data(),
          .accumulate_N = accumulate,
          .other_grad_scores_ST = max,
          .grad_sums_N = floats ? nullptr : slots.data()};
      return depth_attention_backward_on_gpu(op, /*complete=*/false, partial_sums, grad_queries,
                                             stream);
    });
  }

  // One recent source, the sum that is formed here.
  void phase_two() {
    Memory memory;
    const auto rows = memory.many<Storage>(9, kNumbers);
    auto *query = memory.rows<float>(D_), *gain = memory.rows<float>(D_);
    const auto statistics = memory.many<float>(9, T_);
    auto* partial_sums = memory.rows<float>(runs_of_tokens(T_, D_) * 2 * D_);
    auto* sums = memory.rows<float>(2 * D_);
    const Storage* recent[] = {rows[2]};
    float* rms[] = {statistics[0]};
    const float* saved_rms[] = {statistics[0]};
    const bool no[] = {false};
    report("phase 2 forward: add, attend, norm", 5, 0, [&] {
      return phase_two_on_gpu<Storage>({.num_recent = 1,
                                        .num_tokens = T_,
                                        .width = D_,
                                        .earlier_TD = rows[3],
                                        .max_T = statistics[1],
                                        .sum_T = statistics[2],
                                        .recent_K = recent,
                                        .partial_TD = rows[0],
                                        .pending_TD = rows[1],
                                        .sum_TD = rows[2],
                                        .folded_query_D = query,
                                        .eps = 1e-6,
                                        .gain_D = gain,
                                        .norm_eps = 1e-6,
                                        .inverse_rms_K = rms,
                                        .rms_known_K = no,
                                        .x_TD = rows[4],
                                        .normalized_TD = nullptr,
                                        .scores_KT = statistics[3],
                                        .weights_KT = statistics[4],
                                        .earlier_weight_T = statistics[5],
                                        .rho_T = statistics[6]},
                                       stream);
    });
    Storage* grad_recent[] = {rows[8]};
    report("phase 2 backward", 6, 0, [&] {
      return phase_two_backward_on_gpu<Storage>({.num_recent = 1,
                                                 .num_tokens = T_,
                                                 .width = D_,
                                                 .recent_K = recent,
                                                 .folded_query_D = query,
                                                 .gain_D = gain,
                                                 .norm_eps = 1e-6,
                                                 .inverse_rms_K = saved_rms,
                                                 .scores_KT = statistics[3],
                                                 .weights_KT = statistics[4],
                                                 .earlier_weight_T = statistics[5],
                                                 .rho_T = statistics[6],
                                                 .kept_TD = rows[5],
                                                 .kept_factor_D = gain,
                                                 .grad_x_TD = rows[4],
                                                 .grad_sum_TD = rows[6],
                                                 .grad_earlier_TD = rows[7],
                                                 .grad_sum_T = statistics[7],
                                                 .grad_recent_K = grad_recent,
                                                 .accumulate_K = no,
                                                 .grad_scores_T = statistics[8]},
                                                partial_sums, sums, stream);
    });
  }

  void elementary() {
    Memory memory;
    const auto rows = memory.many<Storage>(5, kNumbers);
    auto *gain = memory.rows<float>(D_), *grad_gain = memory.rows<float>(D_);
    auto *rho = memory.rows<float>(T_), *sums = memory.rows<float>(runs_of_tokens(T_, D_) * D_);
    report("add and norm forward", 4, 0, [&] {
      return rms_norm_on_gpu<Storage>({D_, rows[0], rows[1], rows[2], gain, 1e-6, rows[3], rho}, T_,
                                      stream);
    });
    report("add and norm backward", 4, 0, [&] {
      return rms_norm_backward_on_gpu<Storage>({D_, rows[2], rho, gain, rows[0], rows[1], rows[3]},
                                               T_, sums, grad_gain, stream);
    });
    report("SwiGLU forward", 3, 0, [&] {
      return swiglu_on_gpu(kernel::SwigluForward<Storage>{rows[0], rows[1], rows[2]}, kNumbers,
                           stream);
    });
    report("SwiGLU backward", 5, 0, [&] {
      return swiglu_on_gpu(
          kernel::SwigluBackward<Storage>{rows[0], rows[1], rows[2], rows[3], rows[4]}, kNumbers,
          stream);
    });
    constexpr int64_t kHalf = 64, kSequence = 2048;
    auto *cosine = memory.rows<float>(kSequence * kHalf),
         *sine = memory.rows<float>(kSequence * kHalf);
    report("rotary embedding, heads of 128", 2, 0, [&] {
      return rotary_on_gpu<Storage>(
          {kSequence, D_ / (2 * kHalf), kHalf, cosine, sine, rows[0], rows[1]}, T_, stream);
    });
  }

  const int64_t D_, T_;
  const double copy_;
};

void run(const std::vector<int64_t>& widths) {
  check_cuda(cudaStreamCreate(&stream), "stream");
  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, 0), "device");
  const double copy = copy_rate();
  std::printf("%s, %d multiprocessors; a copy of 1 GiB moves %.0f GB/s (read and written)\n",
              properties.name, properties.multiProcessorCount, copy);
  std::printf("tensors [T, D] of %ld numbers\n", static_cast<long>(kNumbers));
  for (const int64_t width : widths) {
    Kernels<BFloat16>(width, copy).run();
    if (width == widths[widths.size() / 2]) Kernels<float>(width, copy).run();
  }
}

}  // namespace
}  // namespace attnres::gpu

int main(int argc, char** argv) {
  std::vector<int64_t> widths;
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--once") {
      attnres::gpu::repeats = 1;
    } else {
      widths.push_back(std::atol(argv[i]));
    }
  }
  if (widths.empty()) widths = {1024, 2048, 4096};
  try {
    attnres::gpu::run(widths);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
