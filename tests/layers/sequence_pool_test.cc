#include "attnres/layers/sequence_pool.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "attnres/support/error.h"
#include "tests/text/test_files.h"

namespace attnres::testing::sequence_pool_test {
namespace {

using ::testing::HasSubstr;

// One layer that keeps each token's number, and of a sequence the sum of its tokens' numbers: a
// state that forgets how it came about.
class Pool : public ::testing::Test {
 protected:
  static constexpr int64_t kPage = 4, kPages = 6;  // 12 tokens, and three sequences' last pages
  static constexpr size_t kNumbers = 0, kSums = 1;

  static std::vector<std::vector<KeptTensor>> kept() {
    return {{},
            {{.name = "numbers", .sizes = {2}},
             {.name = "sums", .of = KeptTensor::Of::sequence, .sizes = {1}}}};
  }

  // Computes these tokens of sequences, a list of numbers each.
  void compute(const std::vector<std::pair<int64_t, std::vector<float>>>& more) {
    std::vector<Continuation> continuations;
    std::vector<float> numbers;
    for (const auto& [sequence, added] : more) {
      continuations.push_back({sequence, static_cast<int64_t>(added.size())});
      numbers.insert(numbers.end(), added.begin(), added.end());
    }
    compute(pool_.append(continuations), numbers);
  }

  void compute(const Spans& spans, const std::vector<float>& numbers) {
    const at::Tensor rows_T1 = at::tensor(numbers).unsqueeze(1);
    PageStore& store = pool_.store();
    store.write_tokens(1, kNumbers, spans, rows_T1.expand({-1, 2}));
    for (const SpanGroup& group : spans.groups()) {
      const at::Tensor sums = store.read_states(1, kSums, spans, group);
      store.write_states(1, kSums, spans, group, sums + spans.batch(rows_T1, group).sum(1));
    }
  }

  // What `read` gives for the spans of one more token of a sequence, which is then taken back.
  template <class Read>
  at::Tensor before_the_next(int64_t sequence, const Read& read) {
    const int64_t length = pool_.length(sequence);
    const at::Tensor found = read(pool_.append({{sequence, 1}})).clone();
    EXPECT_EQ(pool_.truncate(sequence, length), length);
    return found;
  }

  // What is kept of a sequence's tokens, and its state.
  std::vector<float> numbers(int64_t sequence) {
    const at::Tensor kept = before_the_next(sequence, [&](const Spans& next) {
      return pool_.store().read_tokens(1, kNumbers, next, 0).narrow(0, 0, next.all()[0].position);
    });
    EXPECT_TRUE(kept.select(1, 0).equal(kept.select(1, 1)));
    const at::Tensor column = kept.select(1, 0).contiguous();
    return {column.const_data_ptr<float>(), column.const_data_ptr<float>() + column.numel()};
  }
  float sum(int64_t sequence) {
    return before_the_next(sequence,
                           [&](const Spans& next) {
                             return pool_.store().read_states(1, kSums, next, next.groups()[0]);
                           })
        .item<float>();
  }

  void expect(int64_t sequence, const std::vector<float>& expected) {
    EXPECT_EQ(pool_.length(sequence), static_cast<int64_t>(expected.size()));
    EXPECT_EQ(numbers(sequence), expected);
    float total = 0;
    for (const float number : expected) total += number;
    EXPECT_EQ(sum(sequence), total);
  }

  SequencePool pool_{kept(), {.sequences = 3, .tokens = 12, .page_tokens = kPage}};
};

TEST_F(Pool, KeepsWhatCallsOfAnyMixtureAdd) {
  const int64_t a = pool_.add(), b = pool_.add(), c = pool_.add();
  compute({{a, {1, 2, 3}}, {b, {10}}});
  compute({{c, {20}}, {a, {4}}, {b, {11, 12, 13, 14}}});
  compute({{b, {15}}, {a, {5}}});
  expect(a, {1, 2, 3, 4, 5});
  expect(b, {10, 11, 12, 13, 14, 15});
  expect(c, {20});
}

TEST_F(Pool, SpansStandWhereTheirSequencesDo) {
  const int64_t a = pool_.add(), b = pool_.add();
  compute({{a, {1, 2, 3}}});
  const Spans spans = pool_.append({{a, 1}, {b, 2}});
  EXPECT_EQ(spans.tokens(), 3);
  EXPECT_EQ(spans.all()[0].position, 3);
  EXPECT_EQ(spans.all()[1].position, 0);
  EXPECT_EQ(spans.all()[1].sequence, b);
  ASSERT_EQ(spans.groups().size(), 2u);
  EXPECT_EQ(spans.groups()[1].first_row, 1);
}

TEST_F(Pool, ForksShareUntilOneGoesOn) {
  const int64_t a = pool_.add();
  compute({{a, {1, 2, 3, 4, 5}}});
  const int64_t room = pool_.free_tokens();
  const int64_t b = pool_.fork(a);
  EXPECT_EQ(pool_.free_tokens(), room);
  compute({{b, {60}}});
  EXPECT_EQ(pool_.free_tokens(), room - kPage);  // the page that both were in the middle of
  compute({{a, {6, 7}}});
  EXPECT_EQ(pool_.free_tokens(), room - kPage);
  expect(a, {1, 2, 3, 4, 5, 6, 7});
  expect(b, {1, 2, 3, 4, 5, 60});
  pool_.free(a);
  expect(b, {1, 2, 3, 4, 5, 60});
}

TEST_F(Pool, GoesBackToASnapshotAndOnFromThere) {
  const int64_t a = pool_.add();
  compute({{a, {1, 2, 3}}});
  pool_.snapshot(a);
  compute({{a, {4, 5, 6}}});
  EXPECT_EQ(pool_.truncate(a, 5), 3);
  expect(a, {1, 2, 3});
  compute({{a, {40, 50}}});
  expect(a, {1, 2, 3, 40, 50});
  EXPECT_EQ(pool_.truncate(a, 5), 5);  // nothing to take back
  EXPECT_EQ(pool_.truncate(a, 2), 0);  // before the snapshot, which is gone then
  expect(a, {});
  compute({{a, {7, 8, 9, 10}}});
  EXPECT_EQ(pool_.truncate(a, 3), 0);
}

TEST_F(Pool, MakesSnapshotsWithinACall) {
  const int64_t a = pool_.add(), b = pool_.add();
  compute({{a, {1}}, {b, {9}}});
  const Spans spans = pool_.append({{a, 6, {3, 5}}, {b, 2}});
  ASSERT_EQ(spans.all().size(), 2u);
  EXPECT_EQ(pool_.length_truncated(a, 6), 0);  // not yet
  compute(spans, {2, 3, 4, 5, 6, 7, 10, 11});
  expect(a, {1, 2, 3, 4, 5, 6, 7});
  expect(b, {9, 10, 11});
  EXPECT_EQ(pool_.length_truncated(a, 7), 7);
  EXPECT_EQ(pool_.length_truncated(a, 6), 5);
  EXPECT_EQ(pool_.truncate(a, 6), 5);
  expect(a, {1, 2, 3, 4, 5});
  EXPECT_EQ(pool_.truncate(a, 4), 3);
  expect(a, {1, 2, 3});
  compute({{a, {40}}});
  expect(a, {1, 2, 3, 40});
}

// A call that never was, or failed, leaves none.
TEST_F(Pool, GoesBackToNoSnapshotThatWasNotMade) {
  const int64_t a = pool_.add();
  compute({{a, {1, 2}}});
  pool_.snapshot(a);
  pool_.append({{a, 6, {3, 5}}});
  EXPECT_EQ(pool_.truncate(a, 6), 2);
  expect(a, {1, 2});
}

TEST_F(Pool, MakesOnlyTheSnapshotsThatItHasRoomFor) {
  const std::vector<std::vector<KeptTensor>> kept = {
      {{.name = "sums", .of = KeptTensor::Of::sequence, .sizes = {1}}}};
  SequencePool one(kept, {.tokens = 12, .snapshot_bytes = sizeof(float)});
  EXPECT_TRUE(one.takes_snapshots());
  const Spans spans = one.append({{one.add(), 6, {2, 4}}});
  ASSERT_EQ(spans.all()[0].snapshots.size(), 1u);
  EXPECT_EQ(spans.groups().size(), 2u);

  SequencePool none(kept, {.tokens = 12, .snapshot_bytes = sizeof(float) - 1});
  EXPECT_TRUE(none.has_states());
  EXPECT_FALSE(none.takes_snapshots());
  EXPECT_EQ(none.append({{none.add(), 6, {2, 4}}}).groups().size(), 1u);
}

TEST_F(Pool, ForksGoBackToTheSameSnapshots) {
  const int64_t a = pool_.add();
  compute({{a, {1, 2}}});
  pool_.snapshot(a);
  compute({{a, {3, 4, 5}}});
  const int64_t b = pool_.fork(a);
  pool_.free(a);
  EXPECT_EQ(pool_.truncate(b, 4), 2);
  compute({{b, {30}}});
  expect(b, {1, 2, 30});
}

TEST_F(Pool, WithoutRecurrentStatesAnyTokensAreTakenBack) {
  SequencePool pool({{{.name = "numbers", .sizes = {1}}}}, {.tokens = 12, .page_tokens = kPage});
  const int64_t a = pool.add();
  pool.append({{a, 11}});
  const int64_t room = pool.free_tokens();
  EXPECT_EQ(pool.truncate(a, 5), 5);
  EXPECT_EQ(pool.free_tokens(), room + kPage);
  EXPECT_EQ(pool.append({{a, 1}}).all()[0].position, 5);
}

TEST_F(Pool, DropsSnapshotsBeyondItsBound) {
  SequencePool pool({{{.name = "sums", .of = KeptTensor::Of::sequence, .sizes = {1}}}},
                    {.tokens = 12, .snapshot_bytes = 2 * sizeof(float)});
  const int64_t a = pool.add();
  for (int t = 0; t < 4; ++t) {
    const Spans spans = pool.append({{a, 1}});
    pool.store().write_states(0, 0, spans, spans.groups()[0], at::ones({1, 1}));
    if (t < 3) pool.snapshot(a);
    EXPECT_EQ(pool.snapshot_bytes(), std::min(t + 1, 2) * 4);
  }
  EXPECT_EQ(pool.truncate(a, 3), 3);
  EXPECT_EQ(pool.truncate(a, 2), 2);
  EXPECT_EQ(pool.truncate(a, 1), 0);
  EXPECT_EQ(pool.snapshot_bytes(), 0);
}

TEST_F(Pool, HasRoomForWhatItSays) {
  // Three sequences of together twelve tokens, whichever has them.
  const int64_t a = pool_.add(), b = pool_.add(), c = pool_.add();
  compute({{a, std::vector<float>(9, 1)}, {b, {2}}, {c, {3, 4}}});
  EXPECT_THAT(message_of<Error>([&] { pool_.add(); }), HasSubstr("3 sequences, all in use"));
  const auto refusal = [&](const std::vector<Continuation>& more) {
    return message_of<Error>([&] { pool_.append(more); });
  };
  EXPECT_THAT(refusal({{c, 1}, {a, 9}}), HasSubstr("2 pages of 4 tokens more, but 1"));
  expect(c, {3, 4});
  compute({{a, std::vector<float>(7, 5)}});
  EXPECT_EQ(pool_.free_tokens(), 0);
  pool_.free(b);
  EXPECT_EQ(pool_.free_tokens(), kPage);
  EXPECT_EQ(pool_.length(pool_.add()), 0);
}

TEST_F(Pool, RefusesWhatIsWrong) {
  const int64_t a = pool_.add();
  compute({{a, {1, 2, 3}}});
  const auto refusal = [&](const std::vector<Continuation>& more) {
    return message_of<Error>([&] { pool_.append(more); });
  };
  EXPECT_THAT(refusal({{a, 1}, {a, 1}}), HasSubstr("named twice"));
  EXPECT_THAT(refusal({{a, 0}}), HasSubstr("got 0"));
  EXPECT_THAT(refusal({{a + 1, 1}}), HasSubstr("no sequence 1"));
  EXPECT_THAT(message_of<Error>([&] { pool_.truncate(a, 4); }), HasSubstr("has 3 tokens"));
  expect(a, {1, 2, 3});
  pool_.free(a);
  EXPECT_THAT(message_of<Error>([&] { pool_.length(a); }), HasSubstr("no sequence 0"));
  EXPECT_NE(pool_.add(), a);
  EXPECT_THROW(SequencePool({}, {.tokens = 0}), Error);
}

// A call that is made twice, or only in part, would give numbers that are silently wrong.
TEST_F(Pool, RefusesAStateThatHasSeenOtherTokens) {
  const int64_t a = pool_.add();
  const Spans spans = pool_.append({{a, 2}});
  pool_.require_newest(spans);
  compute(spans, {1, 2});
  EXPECT_THAT(message_of<Error>([&] { compute(spans, {1, 2}); }), HasSubstr("have seen 2 tokens"));
  const Spans skipped = pool_.append({{a, 1}}), next = pool_.append({{a, 1}});
  EXPECT_THAT(message_of<Error>([&] { pool_.require_newest(skipped); }), HasSubstr("which has 4"));
  EXPECT_THAT(message_of<Error>([&] { compute(next, {4}); }),
              HasSubstr("after a call that failed"));
  EXPECT_THAT(message_of<Error>([&] { pool_.snapshot(a); }), HasSubstr("not computed yet"));
  EXPECT_EQ(pool_.truncate(a, 2), 2);
  compute({{a, {3}}});
  expect(a, {1, 2, 3});
}

}  // namespace
}  // namespace attnres::testing::sequence_pool_test
