#include "attnres/data/train_batches.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <utility>

#include "attnres/support/error.h"
#include "attnres/support/random.h"
#include "tests/text/test_files.h"

namespace attnres::train_batches_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int32_t kEnd = 0;
constexpr int64_t kVocabulary = 1'000'000;

// Token i is first + i, so every batch shows where it was taken.
TrainingTokens counting(int64_t length, int32_t first = 1) {
  std::vector<int32_t> tokens(length);
  std::iota(tokens.begin(), tokens.end(), first);
  return TrainingTokens(std::move(tokens));
}

TrainBatchSettings settings(int64_t context, int64_t rows) {
  return {.context = context,
          .rows = rows,
          .vocab_size = kVocabulary,
          .end_of_document = kEnd,
          .seed = 1};
}

// Documents of these lengths, their ends among them: 1, 2, .., 0, 1, 2, .., 0.
std::vector<int32_t> documents(const std::vector<int>& lengths) {
  std::vector<int32_t> tokens;
  for (const int length : lengths) {
    for (int t = 1; t < length; ++t) tokens.push_back(t);
    tokens.push_back(kEnd);
  }
  return tokens;
}

std::vector<int64_t> values(const at::Tensor& x) {
  return {x.const_data_ptr<int64_t>(), x.const_data_ptr<int64_t>() + x.numel()};
}

// Every epoch holds each row once, of rows side by side, from another place on.
TEST(TrainBatches, HaveEachRowOnceAnEpoch) {
  constexpr int64_t T = 8, kRows = 12;  // (105 - 8) / 8
  const TrainBatches batches({{counting(105)}}, settings(T, kRows));
  ASSERT_EQ(batches.rows_of(0), kRows);
  std::set<int64_t> starts;
  std::set<std::vector<int64_t>> orders;
  for (int64_t epoch = 0; epoch < 20; ++epoch) {
    const Batch batch = batches.batch(epoch + 1, 0, kRows);
    EXPECT_TRUE(batch.targets_BT.equal(batch.inputs_BT + 1));
    std::vector<int64_t> firsts = values(batch.inputs_BT.select(1, 0).contiguous());
    orders.insert(firsts);
    std::sort(firsts.begin(), firsts.end());
    starts.insert(firsts[0]);
    for (int64_t i = 0; i < kRows; ++i) EXPECT_EQ(firsts[i], firsts[0] + i * T);
  }
  EXPECT_EQ(orders.size(), 20U);
  EXPECT_GT(starts.size(), 5U);
  EXPECT_LE(*starts.rbegin(), 8);
}

TEST(TrainBatches, DependOnlyOnSeedStepAndRow) {
  const TrainBatches batches({{counting(100'000)}}, settings(8, 8));
  const at::Tensor whole = batches.batch(5, 0, 8).inputs_BT;
  EXPECT_TRUE(
      TrainBatches({{counting(100'000)}}, settings(8, 8)).batch(5, 0, 8).inputs_BT.equal(whole));
  EXPECT_TRUE(
      at::cat({batches.batch(5, 0, 4).inputs_BT, batches.batch(5, 1, 4).inputs_BT}).equal(whole));
  EXPECT_FALSE(batches.batch(6, 0, 8).inputs_BT.equal(whole));
  TrainBatchSettings other = settings(8, 8);
  other.seed = 2;
  EXPECT_FALSE(TrainBatches({{counting(100'000)}}, other).batch(5, 0, 8).inputs_BT.equal(whole));
}

// What runs of earlier versions go on with.
TEST(TrainBatches, MayBeDrawn) {
  TrainBatchSettings drawn = settings(8, 16);
  drawn.order = RowOrder::drawn;
  const Batch batch = TrainBatches({{counting(100)}}, drawn).batch(3, 0, 16);
  const RandomStream random(1, "batches");
  for (int64_t b = 0; b < 16; ++b) {
    const auto first = static_cast<int64_t>(random.below(100 - 8, 3 * (int64_t{1} << 24) + b)) + 1;
    EXPECT_EQ(batch.inputs_BT[b][0].item<int64_t>(), first);
    EXPECT_EQ(batch.targets_BT[b][7].item<int64_t>(), first + 8);
  }
}

TEST(TrainBatches, TakeSourcesByTheirWeights) {
  const TrainBatches batches({{counting(1000), 3}, {counting(1000, 5000), 1}}, settings(10, 40));
  std::map<bool, int> rows;
  for (const int64_t first : values(batches.batch(1, 0, 40).inputs_BT.select(1, 0).contiguous())) {
    ++rows[first >= 5000];
  }
  EXPECT_EQ(rows[true], 10);
  EXPECT_EQ(rows[false], 30);
}

// In rows of 8: the first three, which leave nothing over; then as much of the nine as fits.
TEST(TrainBatches, PackWholeDocuments) {
  TrainBatchSettings packed = settings(8, 3);
  packed.packing = Packing::documents;
  packed.mask_documents = true;
  const TrainBatches batches({{TrainingTokens(documents({3, 4, 2, 9, 1}))}}, packed);
  ASSERT_EQ(batches.rows_of(0), 3);
  const Batch batch = batches.batch(1, 0, 3);
  std::map<std::vector<int64_t>, std::vector<int64_t>> rows;
  for (int64_t b = 0; b < 3; ++b) {
    rows[values(batch.inputs_BT[b].contiguous())] = values(batch.targets_BT[b].contiguous());
  }
  const auto targets = [&](const std::vector<int64_t>& inputs) { return rows.at(inputs); };
  EXPECT_THAT(targets({1, 2, 0, 1, 2, 3, 0, 1}), ElementsAre(2, 0, 1, 2, 3, 0, 1, 0));
  // The document of nine begins a row, after the token that ended the one before.
  EXPECT_THAT(targets({0, 1, 2, 3, 4, 5, 6, 7}), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
  EXPECT_EQ(std::accumulate(batch.sequences.begin(), batch.sequences.end(), int64_t{0}), 3 * 8);
  // What is left over of a row does not count.
  EXPECT_THAT(targets({8, 0, 0, 0, 0, 0, 0, 0}),
              ElementsAre(0, 0, -100, -100, -100, -100, -100, -100));
  for (int64_t b = 0; b < 3; ++b) {
    EXPECT_EQ(batch.filled.at(b), batch.inputs_BT[b][0].item<int64_t>() == 8 ? 2 : 8);
  }
  EXPECT_EQ(batch.tokens(), 8 + 8 + 2);
}

// By two independent ways: the rows of all documents hold each target once.
TEST(TrainBatches, PackEveryTargetOnce) {
  std::vector<int> lengths;
  const RandomStream random(3, "lengths");
  for (int i = 0; i < 200; ++i) lengths.push_back(1 + static_cast<int>(random.below(40, i)));
  const std::vector<int32_t> tokens = documents(lengths);
  TrainBatchSettings packed = settings(16, 1);
  packed.packing = Packing::documents;
  const TrainBatches batches({{TrainingTokens(tokens)}}, packed);
  std::multiset<int64_t> targets;
  int64_t whole_rows = 0;
  for (int64_t step = 1; step <= batches.rows_of(0); ++step) {
    const std::vector<int64_t> row = values(batches.batch(step, 0, 1).targets_BT);
    for (const int64_t target : row) {
      if (target >= 0) targets.insert(target);
    }
    whole_rows += row.back() >= 0;
  }
  EXPECT_EQ(targets, std::multiset<int64_t>(tokens.begin() + 1, tokens.end()));
  EXPECT_LT(whole_rows, batches.rows_of(0));
}

TEST(TrainBatches, TellWhichTokensSeeEachOther) {
  TrainBatchSettings masked = settings(10, 1);
  masked.mask_documents = true;
  masked.order = RowOrder::drawn;
  const TrainBatches batches({{TrainingTokens(documents({4, 4, 4}))}}, masked);
  const Batch batch = batches.batch(1, 0, 1);
  std::vector<int64_t> expected;
  const std::vector<int64_t> inputs = values(batch.inputs_BT);
  for (size_t t = 0, begin = 0; t <= inputs.size(); ++t) {
    if (t < inputs.size() && (inputs[t] != kEnd || t == 0)) continue;
    expected.push_back(static_cast<int64_t>(t - begin));
    begin = t;
  }
  EXPECT_EQ(batch.sequences, expected);
  EXPECT_GE(expected.size(), 3U);
  masked.mask_documents = false;
  EXPECT_TRUE(TrainBatches({{TrainingTokens(documents({4, 4, 4}))}}, masked)
                  .batch(1, 0, 1)
                  .sequences.empty());
}

// The token that ends documents may stand within one, as between the turns of a conversation.
TEST(TrainBatches, CutWhereDocumentsEndIfThatIsKnown) {
  const auto tokens = std::make_shared<std::vector<uint32_t>>(
      std::vector<uint32_t>{1, kEnd, 2, kEnd, 3, 4, kEnd, 5, 6});
  const auto ends = std::make_shared<std::vector<uint64_t>>(std::vector<uint64_t>{4, 7});
  TokenPiece piece = {.owner = tokens,
                      .tokens = tokens->data(),
                      .count = 9,
                      .width = 4,
                      .knows_ends = true,
                      .ends = *ends,
                      .name = "known"};
  TrainBatchSettings masked = settings(8, 1);
  masked.mask_documents = true;
  const auto sequences = [&] {
    return TrainBatches({{TrainingTokens({piece})}}, masked).batch(1, 0, 1).sequences;
  };
  EXPECT_THAT(sequences(), ElementsAre(3, 3, 2));
  piece.knows_ends = false;
  EXPECT_THAT(sequences(), ElementsAre(1, 2, 3, 2));
  // Ends that are none.
  piece.knows_ends = true;
  for (const std::vector<uint64_t>& wrong :
       {std::vector<uint64_t>{7, 4}, {4, 4}, {0, 4}, {4, uint64_t{1} << 63}}) {
    *ends = wrong;
    piece.ends = *ends;
    masked.packing = Packing::documents;
    try {
      EXPECT_EQ(TrainBatches({{TrainingTokens({piece})}}, masked).rows_of(0), 1);
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("ends are damaged"));
    }
  }
}

TEST(TrainBatches, LeaveOutTargetsThatAreMarked) {
  const auto tokens = std::make_shared<std::vector<uint32_t>>();
  for (uint32_t i = 1; i <= 9; ++i) tokens->push_back(i | (i % 3 == 0 ? kNoTarget : 0));
  const TrainingTokens marked({{.owner = tokens,
                                .tokens = tokens->data(),
                                .count = 9,
                                .width = 4,
                                .marks_targets = true,
                                .name = "marked"}});
  const Batch batch = TrainBatches({{marked}}, settings(8, 1)).batch(1, 0, 1);
  EXPECT_THAT(values(batch.inputs_BT), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
  EXPECT_THAT(values(batch.targets_BT), ElementsAre(2, -100, 4, 5, -100, 7, 8, -100));
}

// The tokens 1, 2, .., with those that are targets.
TrainingTokens with_targets(int64_t length, const std::set<int64_t>& targets) {
  const auto tokens = std::make_shared<std::vector<uint32_t>>();
  for (int64_t i = 0; i < length; ++i) {
    const bool counts = targets.contains(i + 1);
    tokens->push_back(static_cast<uint32_t>(i + 1) | (counts ? 0 : kNoTarget));
  }
  return TrainingTokens({{.owner = tokens,
                          .tokens = tokens->data(),
                          .count = length,
                          .width = 4,
                          .marks_targets = true,
                          .name = "marked"}});
}

int64_t counted(const at::Tensor& targets) {
  return targets.ge(0).sum().item<int64_t>();
}

// Answers far apart: most rows hold none, and another takes their place.
TEST(TrainBatches, OfAStreamTakeRowsWithTargets) {
  const TrainingTokens tokens = with_targets(1000, {100, 101, 407, 750, 751, 752, 900});
  const TrainBatches batches({{tokens}}, settings(8, 4));
  ASSERT_EQ(batches.rows_of(0), 124);
  std::set<int64_t> seen;
  for (int64_t step = 1; step <= 62; ++step) {  // two epochs
    const Batch batch = batches.batch(step, 0, 4);
    for (int64_t b = 0; b < 4; ++b) EXPECT_GE(counted(batch.targets_BT[b]), 1);
    for (const int64_t target : values(batch.targets_BT)) seen.insert(target);
    // In parts, and without the steps before, it is the same.
    const TrainBatches others({{tokens}}, settings(8, 4));
    EXPECT_TRUE(others.batch(step, 1, 2).inputs_BT.equal(batch.inputs_BT.slice(0, 2, 4)));
  }
  EXPECT_THAT(seen, ElementsAre(-100, 100, 101, 407, 750, 751, 752, 900));
  // Negative control: its rows as they come mostly hold none.
  const PackedRows rows(tokens, 8, Packing::stream, kEnd);
  int64_t empty = 0;
  for (int64_t i = 0; i < rows.size(); ++i) {
    const TokenRow row = rows.row(i, 0);
    empty += !tokens.has_target(row.first + 1, row.count);
  }
  EXPECT_GE(empty, 115);
}

// What is left out of packed documents is what holds no target, and nothing else.
TEST(TrainBatches, OfDocumentsLeaveOutRowsWithoutTargets) {
  const std::set<int64_t> targets = {3, 40, 41, 97, 130};
  TrainBatchSettings packed = settings(16, 1);
  packed.packing = Packing::documents;
  for (const RowOrder order : {RowOrder::epochs, RowOrder::drawn}) {
    packed.order = order;
    const TrainBatches batches({{with_targets(200, targets)}}, packed);
    ASSERT_EQ(batches.rows_of(0), 4);  // 2 .. 17, 34 .. 49, 82 .. 97, 130 .. 145
    std::multiset<int64_t> seen;
    for (int64_t step = 1; step <= 4; ++step) {
      const Batch batch = batches.batch(step, 0, 1);
      EXPECT_GE(counted(batch.targets_BT), 1);
      for (const int64_t target : values(batch.targets_BT)) {
        if (target >= 0) seen.insert(target);
      }
    }
    if (order == RowOrder::epochs) {
      EXPECT_EQ(seen, std::multiset<int64_t>(targets.begin(), targets.end()));
    }
  }
}

TEST(TrainBatches, RefuseTokensOfWhichNoneCounts) {
  const auto refused = [](const std::set<int64_t>& targets, const TrainBatchSettings& settings) {
    return message_of<Error>([&] { TrainBatches({{with_targets(100, targets)}}, settings); });
  };
  TrainBatchSettings packed = settings(8, 1);
  packed.packing = Packing::documents;
  EXPECT_THAT(refused({}, packed), HasSubstr("none of its 100 tokens counts"));
  EXPECT_THAT(refused({1}, packed), HasSubstr("none of its 100 tokens counts"));  // no target
  EXPECT_THAT(refused({}, settings(8, 1)), HasSubstr("of its 100 tokens none counts"));
  EXPECT_THAT(refused({3, 100}, settings(8, 1)), HasSubstr("data.packing=documents"));
  TrainBatchSettings drawn = settings(8, 1);
  drawn.order = RowOrder::drawn;
  EXPECT_THAT(refused({50}, drawn), HasSubstr("data.order=epochs"));
}

// The rows of every epoch hold it.
TEST(TrainBatches, TakeTheOnlyTokenThatCounts) {
  for (const int64_t target : {9, 50, 89}) {
    const TrainBatches batches({{with_targets(100, {target})}}, settings(8, 1));
    for (int64_t step = 1; step <= 100; ++step) {
      EXPECT_EQ(counted(batches.batch(step, 0, 1).targets_BT), 1) << target;
    }
  }
}

TEST(TrainBatches, NeedOneTokenMoreThanTheContext) {
  EXPECT_EQ(
      TrainBatches({{counting(9)}}, settings(8, 1)).batch(1, 0, 1).inputs_BT[0][0].item<int64_t>(),
      1);
  EXPECT_THAT(message_of<Error>([] { TrainBatches({{counting(8)}}, settings(8, 1)); }),
              AllOf(HasSubstr("8 tokens"), HasSubstr("at least 9")));
  EXPECT_THROW(TrainBatches({{counting(9)}}, settings(0, 1)), UsageError);
  EXPECT_THROW(TrainBatches({{counting(9)}}, settings(8, 0)), UsageError);
  EXPECT_THROW(TrainBatches({{counting(9)}}, settings(8, 1)).batch(0, 0, 1), Error);
  EXPECT_THROW(TrainBatches({{counting(9)}}, settings(8, 2)).batch(1, 1, 2), Error);
}

TEST(TrainBatches, NameATokenOutsideTheVocabulary) {
  TrainBatchSettings few = settings(8, 1);
  few.vocab_size = 20;
  EXPECT_THAT(message_of<Error>([&] { TrainBatches({{counting(9, 15)}}, few).batch(1, 0, 1); }),
              AllOf(HasSubstr("token 5 is 20"), HasSubstr("another tokenizer")));
}

}  // namespace
}  // namespace attnres::train_batches_test
