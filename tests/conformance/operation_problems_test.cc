#include "attnres/conformance/operation_problems.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/tolerances.h"

namespace attnres::testing::operation_problems_test {
namespace {

using Tensors = std::vector<at::Tensor>;

// Of the results of the formula.
double largest_change(const OperationProblem& problem, const Tensors& changed) {
  Tensors ones;
  for (const at::Tensor& result : problem.compute(problem.inputs)) {
    ones.push_back(at::ones_like(result));
  }
  const Tensors before = problem.reference(problem.inputs, ones);
  const Tensors after = problem.reference(changed, ones);
  double change = 0;
  for (size_t i = 0; i < ones.size(); ++i) {
    change = std::max(change, relative_error(after[i], before[i]));
  }
  return change;
}

// So that a kernel that left one out would be found.
TEST(OperationProblems, EveryInputOfTheDeltaRuleMatters) {
  int operations = 0;
  for (const OperationProblems& operation : all_operation_problems()) {
    if (!operation.name.starts_with("gated delta rule")) continue;
    ++operations;
    const OperationProblem& problem = operation.problems.back();
    EXPECT_EQ(largest_change(problem, problem.inputs), 0);
    for (size_t i = 0; i < problem.inputs.size(); ++i) {
      Tensors changed = problem.inputs;
      changed[i] = 0.5 * changed[i];
      EXPECT_GT(largest_change(problem, changed), 10 * operation.forward.bfloat16)
          << operation.name << ", input " << i;
    }
  }
  EXPECT_EQ(operations, 2);
}

}  // namespace
}  // namespace attnres::testing::operation_problems_test
