// Prompts that begin as others did: what is computed again, of models that can go back to any token
// and of those with recurrent states.
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "attnres/infer/engine.h"
#include "attnres/infer/inference_model.h"
#include "attnres/infer/snapshot_lengths.h"
#include "tests/infer/engine_outcomes.h"
#include "tests/model/kinds_of_models.h"

namespace attnres::testing::shared_prefix_test {
namespace {

constexpr double kNear = 1e-8;  // of float64, whose sums are in another order

std::vector<int32_t> joined(std::vector<int32_t> ids, const std::vector<int32_t>& more) {
  ids.insert(ids.end(), more.begin(), more.end());
  return ids;
}

// Two that keep nothing of a sequence but its tokens, and all that do.
const std::vector<std::string> kKinds = {"residual", "block_4",   "mrla",           "kimi_linear",
                                         "kimi_k3",  "kimi_mrla", "kimi_deep_delta"};

bool is_tested(const KindOfModel& kind) {
  return std::find(kKinds.begin(), kKinds.end(), kind.name) != kKinds.end();
}

std::vector<KindOfModel> kinds() {
  std::vector<KindOfModel> all = every_kind_of_model();
  std::erase_if(all, [](const KindOfModel& kind) { return !is_tested(kind); });
  return all;
}

bool has_states(const Transformer& model) {
  return model.make_pool({.tokens = 1})->has_states();
}

TEST(SharedPrefix, IsTestedOfAllThatHaveStates) {
  EXPECT_EQ(kinds().size(), kKinds.size());
  for (const KindOfModel& kind : every_kind_of_model()) {
    EXPECT_TRUE(is_tested(kind) || !has_states(kind.make())) << kind.name;
  }
}

// Pieces of prompts end elsewhere than snapshots.
class SharedPrefixOf : public ::testing::TestWithParam<KindOfModel> {
 protected:
  Outcome outcome_of(const std::vector<int32_t>& prompt, int64_t max_tokens = 4) {
    const int64_t number = engine_.submit(request_of(prompt, max_tokens));
    Outcome outcome = finish(engine_)[number];
    EXPECT_EQ(outcome.error, "");
    EXPECT_LT(error_of(model_, prompt, outcome), kNear);
    return outcome;
  }

  const at::NoGradGuard no_grad_;
  const Transformer model_ = GetParam().make();
  const LocalModel local_{model_};
  Engine engine_{local_, {.context = 400, .sequences = 4, .step_tokens = 90}};
  const bool recurrent_ = has_states(model_);
};

INSTANTIATE_TEST_SUITE_P(Models, SharedPrefixOf, ::testing::ValuesIn(kinds()),
                         [](const auto& info) { return info.param.name; });

TEST_P(SharedPrefixOf, APromptThatComesAgainIsNotComputedAgain) {
  const std::vector<int32_t> prompt = some_ids(310, 1);
  EXPECT_EQ(outcome_of(prompt).shared, 0);
  EXPECT_EQ(outcome_of(prompt).shared, 309);
  EXPECT_EQ(engine_.counts().prompt_tokens, 311);
  // Negative control: one that differs in its middle, from the last place before of which states
  // are kept.
  std::vector<int32_t> other = prompt;
  other[200] = (other[200] + 1) % kSmallVocabulary;
  EXPECT_EQ(outcome_of(other).shared, recurrent_ ? 128 : 200);
}

// The last turn's tokens as they were, and with an answer whose text has become other tokens.
TEST_P(SharedPrefixOf, AConversationGoesOnFromItsLastTurn) {
  const std::vector<int32_t> prompt = some_ids(310, 1), message = some_ids(40, 2);
  const std::vector<int32_t> answer = outcome_of(prompt).tokens;
  EXPECT_EQ(outcome_of(joined(joined(prompt, answer), message)).shared, 313);
  std::vector<int32_t> retokenized = answer;
  retokenized[1] = (retokenized[1] + 1) % kSmallVocabulary;
  EXPECT_EQ(outcome_of(joined(joined(prompt, retokenized), message)).shared,
            recurrent_ ? 309 : 311);
  // The second message in another wording: from where the conversation had gone on, since the last
  // token of an answer is computed with what follows it.
  EXPECT_EQ(outcome_of(joined(joined(prompt, answer), some_ids(30, 3))).shared,
            recurrent_ ? 313 : 314);
}

// Which begin alike for 200 tokens. That they do shows when the second comes.
TEST_P(SharedPrefixOf, PromptsWithACommonBeginningShareIt) {
  const std::vector<int32_t> beginning = some_ids(200, 1);
  outcome_of(joined(beginning, {1, 2, 3, 4, 5}));
  EXPECT_EQ(outcome_of(joined(beginning, some_ids(30, 2))).shared, recurrent_ ? 128 : 200);
  EXPECT_EQ(outcome_of(joined(beginning, {6, 7, 8, 9})).shared, 200);
  EXPECT_EQ(outcome_of(joined(beginning, {9, 8, 7, 6})).shared, 200);
}

TEST_P(SharedPrefixOf, SamplesOfAPromptReadItOnce) {
  const std::vector<int32_t> prompt = some_ids(310, 1);
  for (const uint64_t seed : {1, 2, 3, 4}) engine_.submit(request_of(prompt, 3, seed));
  Outcomes outcomes = finish(engine_);
  for (auto& [number, outcome] : outcomes) {
    EXPECT_EQ(outcome.shared, number == 0 ? 0 : 309);
    EXPECT_LT(error_of(model_, prompt, outcome), kNear);
  }
  EXPECT_EQ(engine_.counts().prompt_tokens, 310 + 3);
}

TEST_P(SharedPrefixOf, ThoseThatComeTogetherWaitForWhatTheyShare) {
  const std::vector<int32_t> beginning = some_ids(200, 1);
  std::vector<std::vector<int32_t>> prompts;
  for (const int64_t rest : {30, 41, 52}) {
    prompts.push_back(joined(beginning, some_ids(rest, static_cast<uint64_t>(rest))));
    engine_.submit(request_of(prompts.back(), 3));
  }
  Outcomes outcomes = finish(engine_);
  for (auto& [number, outcome] : outcomes) {
    EXPECT_LT(error_of(model_, prompts[number], outcome), kNear);
    // What the first had read in two pieces when it had the states of 128 tokens.
    const int64_t shared = recurrent_ ? 180 : 200;
    EXPECT_EQ(outcome.shared, number == 0 ? 0 : shared) << number;
  }
}

TEST(SnapshotLengthsTest, AreEvenlySpacedAndWhereAPromptMayComeAgain) {
  using Lengths = std::vector<int64_t>;
  const SnapshotLengths of_310(310), after_parting(310, 200);
  EXPECT_EQ(of_310.between(0, 310), (Lengths{128, 256, 309}));
  EXPECT_EQ(after_parting.between(128, 310), (Lengths{200, 256, 309}));
  EXPECT_EQ(of_310.between(128, 256), Lengths{});
  EXPECT_EQ(of_310.between(309, 400), Lengths{});
  EXPECT_EQ(of_310.last(308), 256);
  EXPECT_EQ(of_310.last(127), 0);
  EXPECT_EQ(after_parting.last(255), 200);
  EXPECT_EQ(SnapshotLengths(130).between(0, 130), (Lengths{128, 129}));
  EXPECT_EQ(SnapshotLengths(16).between(0, 16), Lengths{});  // read again sooner than copied
  EXPECT_EQ(SnapshotLengths(17).between(0, 17), Lengths{16});
  EXPECT_EQ(SnapshotLengths().between(0, 1000), Lengths{});
}

}  // namespace
}  // namespace attnres::testing::shared_prefix_test
