// Calls that mix pieces of prompts and single tokens of many sequences.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <gmock/gmock.h>

#include "attnres/model/transformer.h"
#include "attnres/support/error.h"
#include "tests/model/kinds_of_models.h"
#include "tests/text/test_files.h"
#include "tests/tolerances.h"

namespace attnres::testing::ragged_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class Ragged : public ::testing::TestWithParam<KindOfModel> {
 protected:
  static constexpr int64_t kSequences = 3, kLength = 11;

  const at::NoGradGuard no_grad_;
  const Transformer model_ = GetParam().make();
  const at::Tensor ids_ = random_ids(kSequences, kLength);
  const at::Tensor expected_ = model_.hidden(ids_);  // each sequence by itself
  // Depth scores of keys that are not normed reach tens, and a softmax multiplies roundings by
  // them.
  const double wide_ = 10 * tolerance(at::kDouble);
  const std::unique_ptr<SequencePool> pool_ =
      model_.make_pool({.sequences = 4, .tokens = 48, .page_tokens = 4});
};

INSTANTIATE_TEST_SUITE_P(Models, Ragged, ::testing::ValuesIn(every_kind_of_model()),
                         [](const auto& info) { return info.param.name; });

// By call: which of the three sequences, how many tokens more, and where states are kept.
const std::vector<std::vector<Continuation>> kCalls = {
    {{0, 4}, {1, 1}}, {{1, 3, {2}}, {2, 3}, {0, 1}}, {{2, 1}, {0, 1}, {1, 1}}, {{0, 5, {7, 9}}},
    {{1, 1}, {2, 6}}, {{2, 1}, {1, 5, {8}}}};

TEST_P(Ragged, CallsGiveWhatEachSequenceGivesAlone) {
  std::vector<int64_t> numbers;
  for (int i = 0; i < kSequences; ++i) numbers.push_back(pool_->add());
  for (const std::vector<Continuation>& call : kCalls) {
    std::vector<at::Tensor> ids, expected;
    std::vector<Continuation> more;
    for (const auto& [which, tokens, snapshots] : call) {
      const int64_t before = pool_->length(numbers[which]);
      ids.push_back(ids_[which].narrow(0, before, tokens));
      expected.push_back(expected_[which].narrow(0, before, tokens));
      more.push_back({numbers[which], tokens, snapshots});
    }
    EXPECT_TRUE(close(model_.hidden(at::cat(ids), pool_->append(more)), at::cat(expected), wide_));
  }
  for (const int64_t number : numbers) EXPECT_EQ(pool_->length(number), kLength);
}

// Negative control: the same tokens of the wrong sequence.
TEST_P(Ragged, EarlierTokensMatter) {
  const int64_t a = pool_->add(), b = pool_->add();
  model_.hidden(ids_.narrow(0, 0, 2).narrow(1, 0, 5).flatten(), pool_->append({{a, 5}, {b, 5}}));
  const at::Tensor next = model_.hidden(ids_[0].narrow(0, 5, 2), pool_->append({{b, 2}}));
  EXPECT_FALSE(close(next, expected_[0].narrow(0, 5, 2), 1e-3));
}

TEST_P(Ragged, AForkGoesOnByItself) {
  const int64_t a = pool_->add();
  const auto decode = [&](int64_t sequence, const at::Tensor& ids_T) {
    return model_.hidden(ids_T, pool_->append({{sequence, ids_T.size(0)}}));
  };
  decode(a, ids_[0].narrow(0, 0, 6));
  const int64_t b = pool_->fork(a);
  const at::Tensor other = at::cat({ids_[0].narrow(0, 0, 6), ids_[1].narrow(0, 6, 3)});
  EXPECT_TRUE(close(decode(b, ids_[1].narrow(0, 6, 3)),
                    model_.hidden(other.unsqueeze(0))[0].narrow(0, 6, 3), wide_));
  EXPECT_TRUE(close(decode(a, ids_[0].narrow(0, 6, 5)), expected_[0].narrow(0, 6, 5), wide_));
}

TEST_P(Ragged, TakesTokensBack) {
  const int64_t a = pool_->add();
  model_.hidden(ids_[0].narrow(0, 0, 4), pool_->append({{a, 4}}));
  pool_->snapshot(a);
  model_.hidden(ids_[1].narrow(0, 0, 5), pool_->append({{a, 5}}));
  const int64_t left = pool_->truncate(a, 5);
  ASSERT_TRUE(left == 4 || left == 5);
  pool_->truncate(a, 4);
  EXPECT_TRUE(close(model_.hidden(ids_[0].narrow(0, 4, 7), pool_->append({{a, 7}})),
                    expected_[0].narrow(0, 4, 7), wide_));
}

TEST_P(Ragged, RefusesAPoolOfAnotherModel) {
  const Transformer same_shape = GetParam().make();
  const int64_t a = pool_->add();
  const Spans spans = pool_->append({{a, 3}});
  EXPECT_THAT(message_of<Error>([&] { same_shape.hidden(ids_[0].narrow(0, 0, 3), spans); }),
              HasSubstr("another model's pool"));
  EXPECT_TRUE(close(model_.hidden(ids_[0].narrow(0, 0, 3), spans), expected_[0].narrow(0, 0, 3)));
}

TEST(RaggedCalls, RefuseWhatWouldBeSilentlyWrong) {
  const Transformer model = small_model(attn_res());
  const auto pool = model.make_pool({.tokens = 20});
  const int64_t a = pool->add();
  const at::Tensor ids = random_ids(1, 8)[0];
  const auto refusal = [&](int64_t tokens, const Spans& spans, const RunContext& context = {}) {
    return message_of<Error>([&] { model.hidden(ids.narrow(0, 0, tokens), spans, context); });
  };
  const Spans first = pool->append({{a, 3}});
  EXPECT_THAT(refusal(2, first), AllOf(HasSubstr("have 3 tokens"), HasSubstr("2 ids")));
  EXPECT_THAT(refusal(3, first, {.recompute = true}), HasSubstr("recomputed"));
  pool->append({{a, 1}});
  EXPECT_THAT(refusal(3, first), HasSubstr("tokens 0 to 2 of sequence 0, which has 4"));
}

}  // namespace
}  // namespace attnres::testing::ragged_test
