// A range of tokens is computed as it is among all of them, and nothing else is written; from
// memory that no vector is aligned to, on every instruction set.
#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <vector>

#include "attnres/ops/depth_scores/kernel.h"
#include "attnres/ops/residual_streams/kernel.h"
#include "attnres/ops/sinkhorn/kernel.h"
#include "attnres/support/random.h"
#include "tests/ops/every_target.h"

namespace attnres::kernel {
namespace {

constexpr int64_t kTokens = 39, kWidth = 24, kHeads = 2, kSources = 3, kStreams = 5;
constexpr int64_t kRow = kTokens * kWidth, kStreamRows = kStreams * kRow;
constexpr float kUntouched = 12345;

// The inputs and outputs of a kernel, each a number behind where a vector would begin.
class Memory {
 public:
  const float* input(int64_t count) {
    const RandomStream random(1, "input" + std::to_string(inputs_++));
    std::vector<float>& numbers = all_.emplace_back(1 + count);
    for (int64_t i = 0; i < count; ++i) numbers[1 + i] = static_cast<float>(random.normal(i));
    return numbers.data() + 1;
  }
  float* output(int64_t count) {
    std::vector<float>& numbers = all_.emplace_back(1 + count, kUntouched);
    outputs_.push_back(&numbers);
    return numbers.data() + 1;
  }
  std::vector<float> outputs() const {
    std::vector<float> all;
    for (const std::vector<float>* numbers : outputs_) {
      all.insert(all.end(), numbers->begin() + 1, numbers->end());
    }
    return all;
  }

 private:
  std::deque<std::vector<float>> all_;
  std::vector<const std::vector<float>*> outputs_;
  int inputs_ = 0;
};

// Computes a range of tokens in this memory.
using RangeKernel = std::function<void(Memory&, int64_t first, int64_t last)>;

std::vector<float> computed(const RangeKernel& kernel, int64_t first, int64_t last) {
  Memory memory;
  kernel(memory, first, last);
  return memory.outputs();
}

void expect_ranges(const RangeKernel& kernel) {
  testing::on_every_target([&] {
    const std::vector<float> whole = computed(kernel, 0, kTokens);
    for (const int64_t cut : {int64_t{0}, int64_t{1}, int64_t{17}, kTokens - 1}) {
      const std::vector<float> before = computed(kernel, 0, cut),
                               after = computed(kernel, cut, kTokens);
      int64_t wrong = 0;
      for (size_t i = 0; i < whole.size(); ++i) {
        const bool is_before = before[i] != kUntouched, is_after = after[i] != kUntouched;
        wrong += is_before == is_after || (is_before ? before : after)[i] != whole[i];
      }
      EXPECT_EQ(wrong, 0) << "of " << whole.size() << ", cut at " << cut;
    }
  });
}

constexpr SourceSizes kSizes = {kSources, kTokens, kWidth, kHeads};
constexpr int64_t kScores = kSources * kTokens * kHeads;
constexpr bool kReplaced[kSources] = {};

template <class Pointer, class Make>
std::vector<Pointer> of_sources(const Make& make) {
  std::vector<Pointer> pointers;
  for (int64_t n = 0; n < kSources; ++n) pointers.push_back(make(kRow));
  return pointers;
}
std::vector<const float*> sources_in(Memory& memory) {
  return of_sources<const float*>([&](int64_t count) { return memory.input(count); });
}
std::vector<float*> gradients_in(Memory& memory) {
  return of_sources<float*>([&](int64_t count) { return memory.output(count); });
}

TEST(TokenRanges, OfDepthScores) {
  for (const bool factorised : {false, true}) {
    expect_ranges([&](Memory& memory, int64_t first, int64_t last) {
      const std::vector<const float*> sources = sources_in(memory);
      const std::vector<float*> gradients = gradients_in(memory);
      const float* query = memory.input(kRow);
      std::vector<float> sums(2 * kWidth);
      DepthScores<float> scores = {.sizes = kSizes,
                                   .sources_TD = sources.data(),
                                   .query_D = query,
                                   .query_stride = kWidth,
                                   .key_gain_D = memory.input(kWidth),
                                   .normalised = true,
                                   .factorised = factorised,
                                   .eps = 1e-6,
                                   .scores_NTH = memory.output(kScores),
                                   .inverse_rms_NT = memory.output(kSources * kTokens)};
      depth_scores(scores, first, last);
      depth_scores_backward({.forward = scores,
                             .grad_scores_NTH = memory.input(kScores),
                             .grad_sources_TD = gradients.data(),
                             .accumulate_N = kReplaced,
                             .grad_query_TD = memory.output(kRow)},
                            first, last, sums.data());
    });
  }
}

TEST(TokenRanges, OfWeightedSums) {
  expect_ranges([](Memory& memory, int64_t first, int64_t last) {
    const std::vector<const float*> sources = sources_in(memory);
    const std::vector<float*> gradients = gradients_in(memory);
    const WeightedSum<float> sum = {.sizes = kSizes,
                                    .sources_TD = sources.data(),
                                    .weights_NTH = memory.input(kScores),
                                    .sum_TD = memory.output(kRow)};
    weighted_sum(sum, first, last);
    weighted_sum_backward({.forward = sum,
                           .grad_sum_TD = memory.input(kRow),
                           .grad_sources_TD = gradients.data(),
                           .accumulate_N = kReplaced,
                           .grad_weights_NTH = memory.output(kScores)},
                          first, last);
  });
}

TEST(TokenRanges, OfStreamsRead) {
  expect_ranges([](Memory& memory, int64_t first, int64_t last) {
    const float *streams = memory.input(kStreamRows), *read = memory.input(kTokens * kStreams);
    read_streams(StreamsRead<float>{.sizes = {kStreams, kWidth},
                                    .streams_TMD = streams,
                                    .read_TM = read,
                                    .h_TD = memory.output(kRow)},
                 first, last);
    read_streams_backward(
        StreamsReadBackward<float>{.sizes = {kStreams, kWidth},
                                   .streams_TMD = streams,
                                   .read_TM = read,
                                   .grad_h_TD = memory.input(kRow),
                                   .grad_streams_TMD = memory.output(kStreamRows),
                                   .accumulate = false,
                                   .grad_read_TM = memory.output(kTokens * kStreams)},
        first, last);
  });
}

TEST(TokenRanges, OfStreamsWritten) {
  for (const bool mixed : {false, true}) {
    expect_ranges([&](Memory& memory, int64_t first, int64_t last) {
      constexpr int64_t kMaps = kTokens * kStreams * kStreams;
      const float *streams = memory.input(kStreamRows), *y = memory.input(kRow),
                  *write = memory.input(kTokens * kStreams),
                  *mix = mixed ? memory.input(kMaps) : nullptr;
      write_streams(StreamsWrite<float>{.sizes = {kStreams, kWidth},
                                        .streams_TMD = streams,
                                        .mix_TMM = mix,
                                        .write_TM = write,
                                        .y_TD = y,
                                        .written_TMD = memory.output(kStreamRows)},
                    first, last);
      write_streams_backward(
          StreamsWriteBackward<float>{.sizes = {kStreams, kWidth},
                                      .streams_TMD = streams,
                                      .mix_TMM = mix,
                                      .write_TM = write,
                                      .y_TD = y,
                                      .grad_written_TMD = memory.input(kStreamRows),
                                      .grad_streams_TMD = memory.output(kStreamRows),
                                      .accumulate = false,
                                      .grad_mix_TMM = mixed ? memory.output(kMaps) : nullptr,
                                      .grad_write_TM = memory.output(kTokens * kStreams),
                                      .grad_y_TD = memory.output(kRow)},
          first, last);
    });
  }
}

TEST(TokenRanges, OfSinkhornsMatrices) {
  expect_ranges([](Memory& memory, int64_t first, int64_t last) {
    constexpr int64_t kSize = 4, kNumbers = kSize * kSize * kTokens;
    const Sinkhorn<float> matrices = {.size = kSize,
                                      .rounds = 3,
                                      .tokens = kTokens,
                                      .logits_MMT = memory.input(kNumbers),
                                      .matrices_MMT = memory.output(kNumbers)};
    sinkhorn(matrices, first, last);
    sinkhorn_backward({.forward = matrices,
                       .grad_matrices_MMT = memory.input(kNumbers),
                       .grad_logits_MMT = memory.output(kNumbers)},
                      first, last);
  });
}

}  // namespace
}  // namespace attnres::kernel
