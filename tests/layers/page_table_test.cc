// Without a tensor: what lies where.
#include "attnres/layers/page_table.h"

#include <gmock/gmock.h>

#include "attnres/support/error.h"
#include "tests/text/test_files.h"

namespace attnres::page_table_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class Table : public ::testing::Test {
 protected:
  // Appends to one sequence; nothing has to be copied.
  Span append(int64_t sequence, int64_t tokens) {
    const PageTable::Appended appended = table_.append({{sequence, tokens}});
    EXPECT_THAT(appended.copies, IsEmpty());
    return appended.spans.at(0);
  }

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

TEST_F(Table, SnapshotsEndWithTheirTokensAndTheOldestFirst) {
  const int64_t a = table_.add();
  EXPECT_EQ(table_.last_snapshot(a), nullptr);
  for (const int64_t length : {2, 3, 4}) {
    append(a, length - table_.length(a));
    table_.add_snapshot(a, nullptr, 8);
    EXPECT_EQ(table_.last_snapshot(a)->length, length);
  }
  EXPECT_EQ(table_.snapshot_bytes(), 16);  // of 20: the first is gone
  const int64_t b = table_.fork(a);
  table_.truncate(a, 3);
  EXPECT_EQ(table_.last_snapshot(a)->length, 3);
  EXPECT_EQ(table_.last_snapshot(b)->length, 4);
  table_.truncate(a, 2);
  EXPECT_EQ(table_.last_snapshot(a), nullptr);
  EXPECT_EQ(table_.snapshot_bytes(), 16);  // b has both
  table_.free(b);
  EXPECT_EQ(table_.snapshot_bytes(), 0);
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
