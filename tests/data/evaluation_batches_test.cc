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

using ::testing::ElementsAre;
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
        const EvaluationBatches batches({tokens}, context, batch_size);
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

// Every third token counts; inputs are those of all.
TEST(EvaluationBatches, ScoreWhatCounts) {
  for (const int64_t length : {2, 7, 24, 39}) {
    EvaluationTokens tokens = {counting(length)};
    for (int64_t t = 0; t < length; ++t) tokens.counts.push_back(t % 3 == 1);
    const EvaluationBatches batches(tokens, 8, 3), all({tokens.ids}, 8, 3);
    std::set<int64_t> scored, expected;
    for (int64_t i = 0; i < batches.size(); ++i) {
      EXPECT_TRUE(batches[i].inputs_BT.equal(all[i].inputs_BT));
      const at::Tensor targets = batches[i].targets_BT.flatten();
      for (int64_t t = 0; t < targets.numel(); ++t) scored.insert(targets[t].item<int64_t>());
    }
    scored.erase(-100);
    for (int64_t t = 1; t < length; t += 3) {
      if (t % 8 != 0) expected.insert(t);
    }
    EXPECT_EQ(scored, expected) << length;
    EXPECT_EQ(batches.scored_tokens(), std::ssize(expected)) << length;
  }
}

TEST(EvaluationTokens, ArePutTogether) {
  EvaluationTokens tokens = {{1, 2}};
  tokens.append({{3, 4}, {false, true}});
  tokens.append({{5}});
  EXPECT_THAT(tokens.ids, ElementsAre(1, 2, 3, 4, 5));
  EXPECT_THAT(tokens.counts, ElementsAre(true, true, false, true, true));
  EXPECT_THAT(tokens.counted(), ElementsAre(1, 2, 4, 5));
  EXPECT_THAT(tokens.first(3).counted(), ElementsAre(1, 2));
  EXPECT_EQ(tokens.first(9).ids.size(), 5U);
  tokens = {{1}};
  tokens.append({{2}});
  EXPECT_TRUE(tokens.counts.empty());
}

// Every token of the documents is scored once, after what its document or its window begins with.
TEST(EvaluationBatches, BeginWindowsAndDocuments) {
  const std::vector<int32_t> before = {90}, ids = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  const auto laid = in_begun_windows(ids, {2, 6, 11}, before, 4);
  EXPECT_THAT(laid.ids, ::testing::ElementsAre(90, 1, 2, 90,  //
                                               90, 3, 4, 5,   //
                                               90, 6, 90, 7,  //
                                               90, 8, 9, 10,  //
                                               90, 11));
  EXPECT_EQ(laid.counted(), ids);
  EXPECT_EQ(EvaluationBatches(laid, 4, 2).scored_tokens(), 11);
  EXPECT_EQ(in_begun_windows(ids, {2, 6, 11}, {}, 4).ids, ids);
  const auto two = in_begun_windows(ids, {11}, {90, 91}, 5);
  EXPECT_THAT(two.first(7).ids, ::testing::ElementsAre(90, 91, 1, 2, 3, 90, 91));
  EXPECT_EQ(EvaluationBatches(two, 5, 2).scored_tokens(), 11);
  EXPECT_THROW(in_begun_windows(ids, {11}, {90, 91}, 2), UsageError);
}

TEST(EvaluationBatches, SayWhatIsWrong) {
  const auto one = counting(1), two = counting(2);
  EXPECT_THAT(message_of<Error>([&] { EvaluationBatches({one}, 8, 1); }), HasSubstr("1 token,"));
  EXPECT_THROW(EvaluationBatches({two}, 1, 1), UsageError);
  EXPECT_THROW(EvaluationBatches({two}, 2, 0), UsageError);
  EXPECT_THROW(EvaluationBatches({two}, 2, 1)[1], Error);
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
