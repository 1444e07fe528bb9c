// How many tokens of each sequence a step computes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace attnres {

// What a sequence has to have computed before its next token can be chosen: one token where it is
// being continued, the rest of the prompt where that is being read.
struct StepDemand {
  int64_t tokens = 1;
  bool prompt = false;
};

// By sequence, with at most `budget` tokens in all and every sequence that is continued among them:
// there may be no more of these than the budget. What they leave is shared out evenly among
// prompts, so that a short one isn't behind a long one; one token each goes to the first where
// there are too few.
std::vector<int64_t> plan_step(const std::vector<StepDemand>& demands, int64_t budget);

// The same where the pieces of a prompt may depend on nothing but itself: one prompt gets
// min(budget, its rest), whatever the others get. It is the first from place `first` on, or else
// from the beginning.
std::vector<int64_t> plan_step_alone(const std::vector<StepDemand>& demands, int64_t budget,
                                     size_t first);

}  // namespace attnres
