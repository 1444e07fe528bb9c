// Runs one kernel once, for bench/instructions to count its instructions: bench_instructions
// KERNEL. Without an argument, describes itself as JSON. The instruction set is always AVX2, which
// valgrind knows; AVX-512 it does not.
#include <fmt/core.h>
#include <hwy/highway.h>
#include <hwy/targets.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "attnres/ops/depth_attention/kernel.h"
#include "attnres/ops/depth_attention/kernel_phase_two.h"
#include "attnres/ops/depth_scores/kernel.h"
#include "attnres/ops/gated_delta_rule/kernel.h"
#include "attnres/ops/residual_streams/kernel.h"
#include "attnres/ops/rms_norm/kernel.h"
#include "attnres/ops/rotary/kernel.h"
#include "attnres/ops/sinkhorn/kernel.h"
#include "attnres/ops/swiglu/kernel.h"

// What is counted.
extern "C" [[gnu::noipa]] void counted_call(const std::function<void()>& kernel) {
  kernel();
}

namespace attnres::kernel {
namespace {

constexpr int64_t kTokens = 256, kWidth = 512, kSources = 9, kSites = 3;
constexpr int64_t kRows = kTokens * kWidth;
constexpr double kEps = 1e-6;

class Operands {
 public:
  float* numbers(int64_t count) {
    std::vector<float>& values = memory_.emplace_back(count);
    for (int64_t i = 0; i < count; ++i) values[i] = 0.01F * static_cast<float>(i * 31 % 100 + 1);
    return values.data();
  }
  float* rows() { return numbers(kRows); }
  std::vector<float*> many(int64_t count, int64_t size) {
    std::vector<float*> list;
    while (std::ssize(list) < count) list.push_back(numbers(size));
    return list;
  }

 private:
  std::vector<std::vector<float>> memory_;
};

void run_depth_attention(bool backward, int64_t sites, bool complete) {
  Operands all;
  const auto sources = all.many(kSources, kRows), rms = all.many(kSources, kTokens);
  const auto outputs = all.many(sites, kRows), grads = all.many(kSources, kRows);
  const bool none[kSources] = {};
  const int64_t statistics = sites * kSources * kTokens;
  const DepthAttentionInputs<float> inputs = {
      sources.data(), all.numbers(sites * kWidth), kSources, sites, kTokens, kWidth};
  float *scores = all.numbers(statistics), *weights = all.numbers(statistics);
  if (!backward) {
    const DepthAttentionForward<float> op{.inputs = inputs,
                                          .eps = kEps,
                                          .complete = complete,
                                          .inverse_rms_N = rms.data(),
                                          .rms_known_N = none,
                                          .outputs_S = outputs.data(),
                                          .max_ST = all.numbers(sites * kTokens),
                                          .sum_ST = all.numbers(sites * kTokens),
                                          .scores_SNT = scores,
                                          .weights_SNT = weights};
    return counted_call([&] { depth_attention_forward(op, 0, kTokens); });
  }
  const DepthAttentionBackward<float> op{
      .inputs = inputs,
      .inverse_rms_N = rms.data(),
      .scores_SNT = scores,
      .weights_SNT = weights,
      .grad_outputs_S = outputs.data(),
      .grad_sum_ST = complete ? nullptr : all.numbers(sites * kTokens),
      .grad_weights_SNT = nullptr,
      .grad_sources_N = grads.data(),
      .accumulate_N = none};
  float* grad_queries = all.numbers(sites * kWidth);
  counted_call([&] { depth_attention_backward(op, 0, kTokens, grad_queries); });
}

// A site in the middle of a block.
void run_phase_two(bool backward) {
  Operands all;
  const auto recent = all.many(1, kRows), rms = all.many(1, kTokens), grads = all.many(1, kRows);
  const bool none[] = {false};
  if (!backward) {
    const PhaseTwoForward<float> op{.num_recent = 1,
                                    .num_tokens = kTokens,
                                    .width = kWidth,
                                    .earlier_TD = all.rows(),
                                    .max_T = all.numbers(kTokens),
                                    .sum_T = all.numbers(kTokens),
                                    .recent_K = recent.data(),
                                    .partial_TD = all.rows(),
                                    .pending_TD = all.rows(),
                                    .sum_TD = all.rows(),
                                    .folded_query_D = all.numbers(kWidth),
                                    .eps = kEps,
                                    .gain_D = all.numbers(kWidth),
                                    .norm_eps = kEps,
                                    .inverse_rms_K = rms.data(),
                                    .rms_known_K = none,
                                    .x_TD = all.rows(),
                                    .normalized_TD = nullptr,
                                    .scores_KT = all.numbers(kTokens),
                                    .weights_KT = all.numbers(kTokens),
                                    .earlier_weight_T = all.numbers(kTokens),
                                    .rho_T = all.numbers(kTokens)};
    return counted_call([&] { phase_two_forward(op, 0, kTokens); });
  }
  const PhaseTwoBackward<float> op{.num_recent = 1,
                                   .num_tokens = kTokens,
                                   .width = kWidth,
                                   .recent_K = recent.data(),
                                   .folded_query_D = all.numbers(kWidth),
                                   .gain_D = all.numbers(kWidth),
                                   .norm_eps = kEps,
                                   .inverse_rms_K = rms.data(),
                                   .scores_KT = all.numbers(kTokens),
                                   .weights_KT = all.numbers(kTokens),
                                   .earlier_weight_T = all.numbers(kTokens),
                                   .rho_T = all.numbers(kTokens),
                                   .kept_TD = all.rows(),
                                   .kept_factor_D = all.numbers(kWidth),
                                   .grad_x_TD = all.rows(),
                                   .grad_sum_TD = all.rows(),
                                   .grad_earlier_TD = all.rows(),
                                   .grad_sum_T = all.numbers(kTokens),
                                   .grad_recent_K = grads.data(),
                                   .accumulate_K = none};
  float* sums = all.numbers(2 * kWidth);
  counted_call([&] { phase_two_backward(op, 0, kTokens, sums); });
}

void run_rms_norm(bool backward) {
  Operands all;
  if (!backward) {
    const RmsNormForward<float> op{.width = kWidth,
                                   .state_TD = all.rows(),
                                   .pending_TD = all.rows(),
                                   .h_TD = all.rows(),
                                   .gain_D = all.numbers(kWidth),
                                   .eps = kEps,
                                   .y_TD = all.rows(),
                                   .rho_T = all.numbers(kTokens)};
    return counted_call([&] { rms_norm_forward(op, 0, kTokens); });
  }
  const RmsNormBackward<float> op{.width = kWidth,
                                  .h_TD = all.rows(),
                                  .rho_T = all.numbers(kTokens),
                                  .gain_D = all.numbers(kWidth),
                                  .grad_y_TD = all.rows(),
                                  .grad_later_TD = all.rows(),
                                  .grad_h_TD = all.rows()};
  float* grad_gain = all.numbers(kWidth);
  counted_call([&] { rms_norm_backward(op, 0, kTokens, grad_gain); });
}

void run_swiglu(bool backward) {
  Operands all;
  if (!backward) {
    const SwigluForward<float> op{all.rows(), all.rows(), all.rows()};
    return counted_call([&] { swiglu_forward(op, 0, kRows); });
  }
  const SwigluBackward<float> op{all.rows(), all.rows(), all.rows(), all.rows(), all.rows()};
  counted_call([&] { swiglu_backward(op, 0, kRows); });
}

void run_rotary() {
  Operands all;
  constexpr int64_t kHeads = 8, kHalf = kWidth / kHeads / 2;
  const Rotary<float> op{.num_tokens = kTokens,
                         .heads = kHeads,
                         .half = kHalf,
                         .cosine = all.numbers(kTokens * kHalf),
                         .sine = all.numbers(kTokens * kHalf),
                         .x = all.rows(),
                         .y = all.rows()};
  counted_call([&] { rotary(op, 0, kTokens); });
}

// One sequence of 4 heads, K = V.
void run_gated_delta_rule() {
  Operands all;
  constexpr int64_t kHeads = 4, kHeadWidth = kWidth / kHeads;
  const GatedDeltaRule<float> op{.tokens = kTokens,
                                 .heads = kHeads,
                                 .key_width = kHeadWidth,
                                 .value_width = kHeadWidth,
                                 .q = all.rows(),
                                 .k = all.rows(),
                                 .decay = all.rows(),
                                 .v = all.rows(),
                                 .beta = all.numbers(kTokens * kHeads),
                                 .state = all.numbers(kWidth * kHeadWidth),
                                 .o = all.rows(),
                                 .new_state = all.numbers(kWidth * kHeadWidth)};
  counted_call([&] { gated_delta_rule(op, 0, kHeads * op.pieces()); });
}

// One head, normed keys, a query that all tokens share.
void run_depth_scores(bool factorised, bool backward) {
  Operands all;
  const auto sources = all.many(kSources, kRows), grads = all.many(kSources, kRows);
  const bool none[kSources] = {};
  const DepthScores<float> forward{
      .sizes = {.sources = kSources, .tokens = kTokens, .width = kWidth, .heads = 1},
      .sources_TD = sources.data(),
      .query_D = all.numbers(kWidth),
      .query_stride = 0,
      .key_gain_D = factorised ? all.numbers(kWidth) : nullptr,
      .normalised = true,
      .factorised = factorised,
      .eps = kEps,
      .scores_NTH = all.numbers(kSources * kTokens),
      .inverse_rms_NT = all.numbers(kSources * kTokens)};
  if (!backward) return counted_call([&] { depth_scores(forward, 0, kTokens); });
  const DepthScoresBackward<float> op{.forward = forward,
                                      .grad_scores_NTH = all.numbers(kSources * kTokens),
                                      .grad_sources_TD = grads.data(),
                                      .accumulate_N = none,
                                      .grad_query_TD = nullptr};
  float* sums = all.numbers(2 * kWidth);
  counted_call([&] { depth_scores_backward(op, 0, kTokens, sums); });
}

void run_weighted_sum(bool backward) {
  Operands all;
  const auto sources = all.many(kSources, kRows), grads = all.many(kSources, kRows);
  const bool none[kSources] = {};
  const WeightedSum<float> forward{
      .sizes = {.sources = kSources, .tokens = kTokens, .width = kWidth, .heads = 1},
      .sources_TD = sources.data(),
      .weights_NTH = all.numbers(kSources * kTokens),
      .sum_TD = all.rows()};
  if (!backward) return counted_call([&] { weighted_sum(forward, 0, kTokens); });
  const WeightedSumBackward<float> op{.forward = forward,
                                      .grad_sum_TD = all.rows(),
                                      .grad_sources_TD = grads.data(),
                                      .accumulate_N = none,
                                      .grad_weights_NTH = all.numbers(kSources * kTokens)};
  counted_call([&] { weighted_sum_backward(op, 0, kTokens); });
}

constexpr int64_t kStreams = 4;
constexpr StreamSizes kStreamSizes = {.streams = kStreams, .width = kWidth};

void run_read_streams(bool backward) {
  Operands all;
  const float *streams = all.numbers(kStreams * kRows), *map = all.numbers(kStreams * kTokens);
  if (!backward) {
    const StreamsRead<float> op{kStreamSizes, streams, map, all.rows()};
    return counted_call([&] { read_streams(op, 0, kTokens); });
  }
  const StreamsReadBackward<float> op{.sizes = kStreamSizes,
                                      .streams_TMD = streams,
                                      .read_TM = map,
                                      .grad_h_TD = all.rows(),
                                      .grad_streams_TMD = all.numbers(kStreams * kRows),
                                      .accumulate = true,
                                      .grad_read_TM = all.numbers(kStreams * kTokens)};
  counted_call([&] { read_streams_backward(op, 0, kTokens); });
}

void run_write_streams(bool backward) {
  Operands all;
  const float *streams = all.numbers(kStreams * kRows), *map = all.numbers(kStreams * kTokens);
  const float *mix = all.numbers(kStreams * kStreams * kTokens), *y = all.rows();
  float* others = all.numbers(kStreams * kRows);
  if (!backward) {
    const StreamsWrite<float> op{kStreamSizes, streams, mix, map, y, others};
    return counted_call([&] { write_streams(op, 0, kTokens); });
  }
  const StreamsWriteBackward<float> op{.sizes = kStreamSizes,
                                       .streams_TMD = streams,
                                       .mix_TMM = mix,
                                       .write_TM = map,
                                       .y_TD = y,
                                       .grad_written_TMD = others,
                                       .grad_streams_TMD = all.numbers(kStreams * kRows),
                                       .accumulate = false,
                                       .grad_mix_TMM = all.numbers(kStreams * kStreams * kTokens),
                                       .grad_write_TM = all.numbers(kStreams * kTokens),
                                       .grad_y_TD = all.rows()};
  counted_call([&] { write_streams_backward(op, 0, kTokens); });
}

// Twenty rounds, as mhc has.
void run_sinkhorn(bool backward) {
  Operands all;
  constexpr int64_t kNumbers = kStreams * kStreams * kTokens;
  const Sinkhorn<float> forward{.size = kStreams,
                                .rounds = 20,
                                .tokens = kTokens,
                                .logits_MMT = all.numbers(kNumbers),
                                .matrices_MMT = all.numbers(kNumbers)};
  if (!backward) return counted_call([&] { sinkhorn(forward, 0, kTokens); });
  const SinkhornBackward<float> op{forward, all.numbers(kNumbers), all.numbers(kNumbers)};
  counted_call([&] { sinkhorn_backward(op, 0, kTokens); });
}

struct Kernel {
  const char* name;
  void (*run)();
};

constexpr Kernel kKernels[] = {
    {"depth attention, forward", [] { run_depth_attention(false, 1, true); }},
    {"depth attention, backward", [] { run_depth_attention(true, 1, true); }},
    {"phase 1, forward", [] { run_depth_attention(false, kSites, false); }},
    {"phase 1, backward", [] { run_depth_attention(true, kSites, false); }},
    {"phase 2, forward", [] { run_phase_two(false); }},
    {"phase 2, backward", [] { run_phase_two(true); }},
    {"addition and RMSNorm, forward", [] { run_rms_norm(false); }},
    {"addition and RMSNorm, backward", [] { run_rms_norm(true); }},
    {"SwiGLU, forward", [] { run_swiglu(false); }},
    {"SwiGLU, backward", [] { run_swiglu(true); }},
    {"rotary", [] { run_rotary(); }},
    {"gated delta rule, forward", [] { run_gated_delta_rule(); }},
    {"depth scores, forward", [] { run_depth_scores(false, false); }},
    {"depth scores, backward", [] { run_depth_scores(false, true); }},
    {"factorised scores, forward", [] { run_depth_scores(true, false); }},
    {"factorised scores, backward", [] { run_depth_scores(true, true); }},
    {"weighted sum, forward", [] { run_weighted_sum(false); }},
    {"weighted sum, backward", [] { run_weighted_sum(true); }},
    {"read 4 streams, forward", [] { run_read_streams(false); }},
    {"read 4 streams, backward", [] { run_read_streams(true); }},
    {"write 4 streams, forward", [] { run_write_streams(false); }},
    {"write 4 streams, backward", [] { run_write_streams(true); }},
    {"Sinkhorn, forward", [] { run_sinkhorn(false); }},
    {"Sinkhorn, backward", [] { run_sinkhorn(true); }},
};

void describe() {
  std::string names;
  for (const Kernel& kernel : kKernels) {
    names += fmt::format("{}\"{}\"", names.empty() ? "" : ", ", kernel.name);
  }
  fmt::print(
      "{{\"compiler\": \"{} {}, Highway {}.{}.{}\", \"tokens\": {}, \"width\": {}, \"sources\": "
      "{}, "
      "\"sites\": {}, \"kernels\": [{}]}}\n",
#ifdef __clang__
      "clang", __clang_major__,
#else
      "gcc", __GNUC__,
#endif
      HWY_MAJOR, HWY_MINOR, HWY_PATCH, kTokens, kWidth, kSources, kSites, names);
}

int run(const char* name) {
  hwy::SetSupportedTargetsForTest(0);
  if ((hwy::SupportedTargets() & HWY_AVX2) == 0) {
    fmt::print(stderr, "bench_instructions: this machine has no AVX2\n");
    return 1;
  }
  hwy::SetSupportedTargetsForTest(HWY_AVX2);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  for (const Kernel& kernel : kKernels) {
    if (std::strcmp(kernel.name, name) != 0) continue;
    kernel.run();
    return 0;
  }
  fmt::print(stderr, "bench_instructions: unknown kernel {}\n", name);
  return 2;
}

}  // namespace
}  // namespace attnres::kernel

int main(int argc, char** argv) {
  if (argc > 1) return attnres::kernel::run(argv[1]);
  attnres::kernel::describe();
  return 0;
}
