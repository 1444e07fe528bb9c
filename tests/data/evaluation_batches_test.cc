#include "attnres/data/evaluation_batches.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <set>

#include "attnres/support/error.h"
#include "tests/text/test_files.h"

namespace attnres::evaluation_batches_test {
namespace {

using ::testing::HasSubstr;

// Token i is i, so every batch shows where it was taken.
std::vector<int32_t> counting(int64_t length) {
  std::vector<int32_t> tokens(length);
  std::iota(tokens.begin(), tokens.end(), 0);
  return tokens;
}

// Every length: each token is scored once, but for the first of each window.
TEST(EvaluationBatches, ScoreEveryTokenOnce) {
  for (int64_t length = 2; length < 40; ++length) {
    for (const int64_t context : {2, 5, 8}) {
      for (const int64_t batch_size : {1, 3}) {
        const auto tokens = counting(length);
        const EvaluationBatches batches(tokens, context, batch_size);
        std::multiset<int64_t> scored, expected;
        for (int64_t i = 0; i < batches.size(); ++i) {
          const Batch batch = batches[i];
          EXPECT_LE(batch.inputs_BT.size(0), batch_size);
          EXPECT_TRUE(batch.targets_BT.equal(batch.inputs_BT + 1));
          const at::Tensor targets = batch.targets_BT.flatten();
          for (int64_t t = 0; t < targets.numel(); ++t) scored.insert(targets[t].item<int64_t>());
        }
        for (int64_t t = 0; t < length; ++t) {
          if (t % context != 0) expected.insert(t);
        }
        EXPECT_EQ(scored, expected) << length << " " << context << " " << batch_size;
        EXPECT_EQ(batches.scored_tokens(), static_cast<int64_t>(expected.size()));
      }
    }
  }
}

TEST(EvaluationBatches, SayWhatIsWrong) {
  const auto one = counting(1), two = counting(2);
  EXPECT_THAT(message_of<Error>([&] { EvaluationBatches(one, 8, 1); }), HasSubstr("1 tokens"));
  EXPECT_THROW(EvaluationBatches(two, 1, 1), UsageError);
  EXPECT_THROW(EvaluationBatches(two, 2, 0), UsageError);
  EXPECT_THROW(EvaluationBatches(two, 2, 1)[1], Error);
}

TEST(UnigramEntropy, OfKnownDistributions) {
  EXPECT_DOUBLE_EQ(unigram_entropy({3, 3, 3}, 4), 0);
  EXPECT_NEAR(unigram_entropy({0, 1, 2, 3}, 4), std::log(4.0), 1e-15);
  // 1/2, 1/4, 1/4: 1.5 bits.
  EXPECT_NEAR(unigram_entropy({0, 0, 1, 2}, 10), 1.5 * std::log(2.0), 1e-15);
  EXPECT_THROW(unigram_entropy({}, 4), Error);
  EXPECT_THROW(unigram_entropy({4}, 4), Error);
  EXPECT_THROW(unigram_entropy({-1}, 4), Error);
}

}  // namespace
}  // namespace attnres::evaluation_batches_test
