#include "attnres/infer/step_plan.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>

#include "attnres/support/random.h"

namespace attnres::testing::step_plan_test {
namespace {

using ::testing::ElementsAre;

constexpr StepDemand kContinued = {1, false};

StepDemand prompt_of(int64_t tokens) {
  return {tokens, true};
}

TEST(PlanStep, SharesWhatIsLeftAmongPrompts) {
  EXPECT_THAT(plan_step({kContinued, prompt_of(100), kContinued}, 10), ElementsAre(1, 8, 1));
  EXPECT_THAT(plan_step({prompt_of(100), prompt_of(100)}, 10), ElementsAre(5, 5));
  EXPECT_THAT(plan_step({prompt_of(100), prompt_of(2), prompt_of(100)}, 10), ElementsAre(4, 2, 4));
  EXPECT_THAT(plan_step({prompt_of(9), prompt_of(9), prompt_of(9)}, 2), ElementsAre(1, 1, 0));
  EXPECT_THAT(plan_step({kContinued, prompt_of(9)}, 1), ElementsAre(1, 0));
  EXPECT_THAT(plan_step({}, 4), ElementsAre());
}

TEST(PlanStep, UsesTheWholeBudgetAndNoMore) {
  const RandomStream random(1, "demands");
  uint64_t draw = 0;
  for (int i = 0; i < 300; ++i) {
    std::vector<StepDemand> demands;
    int64_t continued = 0, wanted = 0;
    for (uint64_t k = random.below(6, draw++) + 1; k > 0; --k) {
      const bool prompt = random.below(2, draw++) == 1;
      demands.push_back({prompt ? 1 + static_cast<int64_t>(random.below(40, draw++)) : 1, prompt});
      continued += prompt ? 0 : 1;
      wanted += demands.back().tokens;
    }
    const int64_t budget = continued + static_cast<int64_t>(random.below(60, draw++));
    const std::vector<int64_t> tokens = plan_step(demands, budget);
    EXPECT_EQ(std::accumulate(tokens.begin(), tokens.end(), int64_t{0}), std::min(wanted, budget));
    for (size_t j = 0; j < demands.size(); ++j) EXPECT_LE(tokens[j], demands[j].tokens);
  }
}

TEST(PlanStepAlone, ReadsOnePromptInPiecesOfItsOwn) {
  const std::vector<StepDemand> demands = {prompt_of(30), kContinued, prompt_of(7)};
  EXPECT_THAT(plan_step_alone(demands, 10, 0), ElementsAre(10, 1, 0));
  EXPECT_THAT(plan_step_alone(demands, 10, 1), ElementsAre(0, 1, 7));
  EXPECT_THAT(plan_step_alone(demands, 10, 3), ElementsAre(10, 1, 0));
  EXPECT_THAT(plan_step_alone({kContinued}, 10, 1), ElementsAre(1));
}

}  // namespace
}  // namespace attnres::testing::step_plan_test
