// What layers need to know of a call's tokens, which is made once for all of them.
#include "attnres/layers/spans.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "attnres/layers/attention.h"
#include "attnres/layers/sequence_pool.h"
#include "tests/layers/plain_layers.h"
#include "tests/operation_counts.h"

namespace attnres::spans_test {
namespace {

using testing::OperationCounts;
using testing::random_tensor;

constexpr int64_t kPage = 4;

// Three sequences of 6, 2 and 9 tokens, of which the first and the last have pages that lie apart,
// and which go on by 2, 1 and 1.
class Layout : public ::testing::Test {
 protected:
  Layout() {
    const int64_t a = pool_.add(), b = pool_.add(), c = pool_.add();
    pool_.append({{a, 3}, {c, 3}, {b, 2}});
    pool_.append({{c, 6}, {a, 3}});
    spans_.emplace(pool_.append({{a, 2}, {b, 1}, {c, 1}}));
  }

  static std::vector<std::vector<KeptTensor>> kept() {
    return {{{.name = "numbers", .sizes = {3, 2}}}};
  }

  SequencePool pool_{kept(), {.sequences = 3, .tokens = 24, .page_tokens = kPage}};
  std::optional<Spans> spans_;
};

TEST_F(Layout, SaysWhereTokensLieAndWhatTheySee) {
  const std::vector<SeenTokens>& seen = spans_->seen(0);
  const std::vector<SeenTokens>& in_window = spans_->seen(3);
  const at::Tensor& rows = spans_->rows();
  ASSERT_EQ(rows.numel(), 4);
  ASSERT_EQ(seen.size(), 4u);
  size_t row = 0;
  for (size_t i = 0; i < 3; ++i) {
    const Span& span = spans_->all()[i];
    for (int64_t t = span.position; t < span.end(); ++t, ++row) {
      const int64_t page = span.pages->at(t / kPage);
      EXPECT_EQ(rows[static_cast<int64_t>(row)].item<int64_t>(), page * kPage + t % kPage);
      EXPECT_EQ(seen[row].pages[t / kPage], page);
      EXPECT_EQ(seen[row].first, 0);
      EXPECT_EQ(seen[row].last, t + 1);
      EXPECT_EQ(in_window[row].first, std::max<int64_t>(0, t - 2));
      EXPECT_EQ(in_window[row].last, t + 1);
    }
    const at::Tensor& pages = spans_->scattered_pages(i);
    EXPECT_EQ(pages.defined(), i != 1) << i;  // b has one page
    if (!pages.defined()) continue;
    EXPECT_TRUE(pages.equal(at::tensor(*span.pages)));
  }
  ASSERT_EQ(spans_->groups().size(), 2u);
  const at::Tensor& slots = spans_->slots(spans_->groups()[1]);
  EXPECT_TRUE(slots.equal(at::tensor({spans_->all()[1].slot, spans_->all()[2].slot})));
}

// Spans of as many tokens are a batch, but for those whose states are kept on their way.
TEST(SpanGroups, ArePiecesWhereSnapshotsAreMade) {
  SequencePool pool({{{.name = "sums", .of = KeptTensor::Of::sequence, .sizes = {1}}}},
                    {.sequences = 6, .tokens = 40});
  std::vector<Continuation> more;
  for (int i = 0; i < 6; ++i) more.push_back({pool.add(), 4});
  more[2].snapshots = {1, 3};
  const Spans spans = pool.append(more);
  std::vector<std::vector<int64_t>> groups;
  for (const SpanGroup& group : spans.groups()) {
    groups.push_back({static_cast<int64_t>(group.first), static_cast<int64_t>(group.count),
                      group.first_row, group.tokens, group.start});
  }
  EXPECT_EQ(
      groups,
      (std::vector<std::vector<int64_t>>{
          {0, 2, 0, 4, 0}, {2, 1, 8, 1, 0}, {2, 1, 9, 2, 1}, {2, 1, 11, 1, 3}, {3, 3, 12, 4, 0}}));
}

TEST_F(Layout, IsMadeForTheFirstThatAsks) {
  const RotaryFrequencies frequencies = rotary_frequencies(6, 100);
  const at::Tensor x = random_tensor({4, 2, 6}, 1), y = random_tensor({4, 3, 6}, 2);
  const auto ask = [&] {
    spans_->turned(x, frequencies);
    spans_->rows();
    spans_->scattered_pages(0);
    spans_->slots(spans_->groups()[1]);
    spans_->seen(5);
    spans_->masks().mask(3, 7, 0, at::kCPU);
  };
  OperationCounts first;
  ask();
  const int64_t tables = first.of("aten::cat"), all = first.all();
  EXPECT_EQ(tables, 2);  // cosines and sines of three positions
  EXPECT_EQ(first.of("aten::tril"), 1);
  ask();
  spans_->turned(y, frequencies);
  EXPECT_EQ(first.of("aten::cat"), tables);
  EXPECT_EQ(first.of("aten::tril"), 1);
  // All that is left is turning: less than the first time, though it was done twice.
  EXPECT_LT(first.all() - all, all);
  // What differs is made: negative controls.
  spans_->turned(x, rotary_frequencies(6, 200));
  EXPECT_EQ(first.of("aten::cat"), 2 * tables);
  spans_->turned(x.to(at::kFloat), frequencies);
  EXPECT_EQ(first.of("aten::cat"), 3 * tables);
  EXPECT_FALSE(
      spans_->masks().mask(3, 7, 0, at::kCPU).equal(spans_->masks().mask(3, 7, 2, at::kCPU)));
  EXPECT_NE(spans_->seen(5)[0].first, spans_->seen(3)[0].first);
}

TEST_F(Layout, TurnsEachTokenByItsPosition) {
  const RotaryFrequencies frequencies = rotary_frequencies(6, 100);
  const at::Tensor x = random_tensor({4, 2, 6}, 1), turned = spans_->turned(x, frequencies);
  int64_t row = 0;
  for (const Span& span : spans_->all()) {
    for (int64_t t = span.position; t < span.end(); ++t, ++row) {
      const at::Tensor alone = apply_rotary(x.narrow(0, row, 1).unsqueeze(0),
                                            rotary_table(t, 1, frequencies, at::kDouble));
      EXPECT_TRUE(turned.narrow(0, row, 1).equal(alone[0])) << t;
    }
  }
}

TEST_F(Layout, OutlivesCopiesAndChangesOfThePool) {
  const std::vector<SeenTokens>& seen = spans_->seen(0);
  const Spans copy = *spans_;
  const std::vector<int64_t> pages(seen[0].pages, seen[0].pages + 2);
  pool_.append({{0, 8}});
  spans_.reset();
  const std::vector<SeenTokens>& of_copy = copy.seen(0);
  EXPECT_EQ(std::vector<int64_t>(of_copy[0].pages, of_copy[0].pages + 2), pages);
}

// Rows that lie apart, and parts of them, go to the places that whole rows in one piece go to.
TEST_F(Layout, TokensAreWrittenFromWhereTheyLie) {
  const at::Tensor wide = random_tensor({4, 5, 2}, 1, at::kFloat);
  const at::Tensor apart = wide.narrow(1, 1, 3), rows = apart.contiguous();
  ASSERT_FALSE(apart.is_contiguous());
  PageStore& store = pool_.store();
  const auto written = [&](at::TensorList parts) {
    store.write_tokens(0, 0, *spans_, at::zeros({4, 3, 2}));
    store.write_tokens(0, 0, *spans_, parts);
    std::vector<at::Tensor> read;
    for (size_t i = 0; i < 3; ++i) {
      const Span& span = spans_->all()[i];
      read.push_back(
          store.read_tokens(0, 0, *spans_, i).narrow(0, span.position, span.tokens).clone());
    }
    return at::cat(read);
  };
  EXPECT_TRUE(written({rows}).equal(rows));
  EXPECT_TRUE(written({apart}).equal(rows));
  EXPECT_TRUE(written({wide.narrow(1, 1, 1), wide.narrow(1, 2, 2)}).equal(rows));
  EXPECT_TRUE(written({rows.transpose(1, 2).contiguous().transpose(1, 2)}).equal(rows));
  EXPECT_TRUE(written({apart.to(at::kDouble)}).equal(rows));
  EXPECT_FALSE(written({rows.flip(0)}).equal(rows));
}

// A whole batch is one sequence's masks and tables too.
TEST(SpansOfTraining, AreMadeOnceForAllLayers) {
  const AttentionShape shape = {
      .heads = 4, .kv_heads = 2, .head_width = 6, .rotary = rotary_frequencies(6, 7), .window = 3};
  ParameterRegistry parameters(at::kDouble, /*seed=*/1);
  const Attention first(shape, {.width = 10, .init_std = 0.3}, parameters),
      second(shape, {.width = 10, .init_std = 0.3, .site = 2}, parameters);
  const at::Tensor x = random_tensor({18, 10}, 1);
  const auto spans = std::make_shared<const Spans>(Spans::whole(2, 9));
  const OperationCounts counts;
  first.forward({.x = x}, {spans});
  const int64_t masks = counts.of("aten::tril"), of_first = counts.all();
  EXPECT_EQ(masks, 1);
  second.forward({.x = x}, {spans});
  EXPECT_EQ(counts.of("aten::tril"), 1);
  EXPECT_LT(counts.all() - of_first, of_first);
}

}  // namespace
}  // namespace attnres::spans_test
