// Without a tensor: what lies where.
#include "attnres/layers/page_table.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "attnres/support/error.h"
#include "tests/text/test_files.h"

namespace attnres::page_table_test {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<int64_t> lengths_in(const PageTable& table, int64_t sequence) {
  std::vector<int64_t> lengths;
  for (const auto& snapshot : table.snapshots(sequence)) lengths.push_back(snapshot->length);
  return lengths;
}

class Table : public ::testing::Test {
 protected:
  // Appends to one sequence; nothing has to be copied.
  Span append(int64_t sequence, int64_t tokens) {
    const PageTable::Appended appended = table_.append({{sequence, tokens}});
    EXPECT_THAT(appended.copies, IsEmpty());
    return appended.spans.at(0);
  }

  std::vector<int64_t> lengths(int64_t sequence) const { return lengths_in(table_, sequence); }

  // Twelve tokens in pages of four, and three sequences' last pages.
  PageTable table_{{.sequences = 3, .tokens = 12, .page_tokens = 4, .snapshot_bytes = 20}};
};

TEST_F(Table, SpansSayWhereTheirTokensLie) {
  const int64_t a = table_.add(), b = table_.add();
  EXPECT_EQ(append(a, 3).position, 0);
  const PageTable::Appended both = table_.append({{b, 5}, {a, 2}});
  ASSERT_EQ(both.spans.size(), 2u);
  const Span &of_b = both.spans[0], &of_a = both.spans[1];
  EXPECT_EQ(of_b.position, 0);
  EXPECT_EQ(of_b.end(), 5);
  EXPECT_EQ(of_b.sequence, b);
  EXPECT_THAT(*of_b.pages, ElementsAre(1, 2));
  EXPECT_EQ(of_a.position, 3);
  EXPECT_EQ(of_a.end(), 5);
  EXPECT_THAT(*of_a.pages, ElementsAre(0, 3));  // the one behind its first was taken
  EXPECT_NE(of_a.slot, of_b.slot);
  EXPECT_EQ(of_a.slot, table_.slot(a));
}

TEST_F(Table, PagesGoOnBehindTheLastWhereTheyCan) {
  const int64_t a = table_.add();
  EXPECT_THAT(*append(a, 9).pages, ElementsAre(0, 1, 2));
  table_.truncate(a, 4);
  EXPECT_EQ(table_.free_tokens(), 20);
  EXPECT_THAT(*append(a, 1).pages, ElementsAre(0, 1));
}

// A page is copied for who goes on within it while another has it too, and for nobody else.
TEST_F(Table, AForkTakesAPageOfItsOwnWhenItGoesOn) {
  const int64_t a = table_.add();
  append(a, 6);
  const int64_t b = table_.fork(a);
  EXPECT_EQ(table_.length(b), 6);
  EXPECT_EQ(table_.free_tokens(), 16);
  EXPECT_EQ(table_.free_tokens_to_reach(b, 7), 4);
  const PageTable::Appended forked = table_.append({{b, 1}});
  ASSERT_EQ(forked.copies.size(), 1u);
  EXPECT_EQ(forked.copies[0].from, 1);
  EXPECT_EQ(forked.copies[0].to, 2);
  EXPECT_THAT(*forked.spans[0].pages, ElementsAre(0, 2));
  EXPECT_EQ(table_.free_tokens_to_reach(a, 7), 0);
  EXPECT_THAT(*append(a, 1).pages, ElementsAre(0, 1));  // nobody shares it any more
  table_.free(a);
  EXPECT_EQ(table_.free_tokens(), 16);  // of a's pages b has one
  table_.free(b);
  EXPECT_EQ(table_.free_tokens(), 24);
}

// Two that go on at once: the second has the page for itself by then.
TEST_F(Table, OfTwoThatShareAPageOneCopiesIt) {
  const int64_t a = table_.add();
  append(a, 2);
  const int64_t b = table_.fork(a);
  const PageTable::Appended both = table_.append({{a, 1}, {b, 1}});
  EXPECT_EQ(both.copies.size(), 1u);
  EXPECT_NE(both.spans[0].pages->back(), both.spans[1].pages->back());
}

TEST_F(Table, SnapshotsEndWithTheirTokens) {
  const int64_t a = table_.add();
  for (const int64_t length : {2, 4}) {
    append(a, length - table_.length(a));
    table_.add_snapshot(a, {length, 8});
  }
  EXPECT_THAT(lengths(a), ElementsAre(2, 4));
  const int64_t b = table_.fork(a);
  table_.truncate(a, 3);
  EXPECT_THAT(lengths(a), ElementsAre(2));
  EXPECT_THAT(lengths(b), ElementsAre(2, 4));
  table_.truncate(a, 1);
  EXPECT_THAT(lengths(a), IsEmpty());
  EXPECT_EQ(table_.snapshot_bytes(), 16);  // b has both
  table_.free(b);
  EXPECT_EQ(table_.snapshot_bytes(), 0);
}

// Room for four snapshots.
class FewSnapshots : public ::testing::Test {
 protected:
  // A sequence of 16 tokens with snapshots of these lengths.
  int64_t sequence_with(const std::vector<int64_t>& snapshots) {
    const int64_t added = table_.add();
    table_.append({{added, 16}});
    for (const int64_t length : snapshots) table_.add_snapshot(added, {length, 8});
    EXPECT_LE(table_.snapshot_bytes(), 39);
    return added;
  }
  std::vector<int64_t> lengths(int64_t sequence) const { return lengths_in(table_, sequence); }

  PageTable table_{{.sequences = 20, .tokens = 320, .page_tokens = 4, .snapshot_bytes = 39}};
};

TEST_F(FewSnapshots, ThinOut) {
  std::vector<int64_t> all(16);
  std::iota(all.begin(), all.end(), 1);
  const std::vector<int64_t> left = lengths(sequence_with(all));
  ASSERT_EQ(left.size(), 4u);
  EXPECT_EQ(left.back(), 16);
  int64_t before = 0, widest = 0;
  for (const int64_t length : left) {
    widest = std::max(widest, length - before);
    before = length;
  }
  EXPECT_LE(widest, 8);  // 13 if the oldest went first, 4 if it were known how many come
}

TEST_F(FewSnapshots, OfALongPromptLeaveOthersTheirs) {
  const int64_t other = sequence_with({6, 12});
  sequence_with({2, 4, 6, 8, 10, 12, 14, 16});
  EXPECT_THAT(lengths(other), Contains(12));
}

TEST_F(FewSnapshots, ThatAreUsedStay) {
  const int64_t used = sequence_with({16}), unused = sequence_with({16});
  for (int i = 0; i < 8; ++i) {
    sequence_with({16});
    table_.use_snapshot(*table_.snapshots(used).at(0));
  }
  EXPECT_THAT(lengths(used), ElementsAre(16));
  EXPECT_THAT(lengths(unused), IsEmpty());
}

// However much it saved, one that nobody uses goes at last.
TEST_F(FewSnapshots, Age) {
  const int64_t old = sequence_with({16});
  for (int i = 0; i < 12; ++i) sequence_with({8});
  EXPECT_THAT(lengths(old), IsEmpty());
}

TEST_F(Table, RefusesSnapshotsThatAreNotWithin) {
  const int64_t a = table_.add();
  append(a, 3);
  const auto refusal = [&](const std::vector<int64_t>& snapshots) {
    return message_of<Error>([&] { table_.append({{a, 4, snapshots}}); });
  };
  EXPECT_THAT(refusal({3}), HasSubstr("within tokens 3 to 6 of sequence 0, one after another, got "
                                      "one of 3"));
  EXPECT_THAT(refusal({7}), HasSubstr("one of 7"));
  EXPECT_THAT(refusal({5, 5}), HasSubstr("one of 5"));
  EXPECT_EQ(table_.length(a), 3);
  table_.append({{a, 4, {4, 6}}});
}

TEST_F(Table, RefusesSpansOfOtherPlaces) {
  const int64_t a = table_.add();
  const auto refusal = [&](const Span& span) {
    return message_of<Error>([&] { table_.require_newest({span}); });
  };
  const Span first = append(a, 5);
  table_.require_newest({first});
  const Span second = append(a, 1);
  EXPECT_THAT(refusal(first), HasSubstr("tokens 0 to 4 of sequence 0, which has 6;"));
  table_.require_newest({second});
  // Cut and appended again, while another takes what it had: as long, and elsewhere.
  table_.truncate(a, 0);
  append(table_.add(), 6);
  const Span again = append(a, 5);
  EXPECT_NE(*again.pages, *first.pages);
  EXPECT_THAT(refusal(first), HasSubstr("which has 5, in other pages by now"));
  EXPECT_THAT(*first.pages, ElementsAre(0, 1));  // what a span says stays as it is
}

}  // namespace
}  // namespace attnres::page_table_test
