#include "attnres/conformance/verify_operations.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

namespace attnres::testing::verify_operations_test {
namespace {

using Tensors = std::vector<at::Tensor>;
using Change = std::function<Tensors(Tensors)>;

// The last of its problems, in one storage type.
OperationProblems one_problem(const OperationProblems& operation) {
  OperationProblems one = operation;
  one.problems = {operation.problems.back()};
  one.large = operation.problems.back();
  if (one.forward.float32) {
    one.forward = {one.forward.float32, {}, {}};
  }
  return one;
}

// The operation, were its inputs these; the formula keeps those that it is given.
Verification verify_with(const OperationProblems& operation, const Change& change) {
  OperationProblems changed = one_problem(operation);
  changed.problems[0].compute = [change, compute = changed.problems[0].compute](
                                    const Tensors& inputs) { return compute(change(inputs)); };
  return verify_operations({changed}, /*bound_factor=*/1);
}

// Whether every instruction set of this machine has an error over the bound.
bool is_noticed(const VerifiedOperation& operation) {
  return std::ranges::all_of(operation.errors,
                             [&](double error) { return error > operation.bound; });
}

TEST(VerifyOperations, NoticesAnInputOfOtherNumbersInEveryOperation) {
  for (const OperationProblems& operation : all_operation_problems()) {
    const Verification right = verify_with(operation, [](Tensors in) { return in; });
    if (right.operations.empty()) {
      EXPECT_FALSE(right.skipped.empty()) << operation.name;
      continue;
    }
    EXPECT_FALSE(is_noticed(right.operations[0])) << operation.name;
    int noticed = 0;
    for (size_t i = 0; i < operation.problems.back().inputs.size(); ++i) {
      const Verification wrong = verify_with(operation, [i](Tensors in) {
        in[i] = -0.5 * in[i].flip(-1);
        return in;
      });
      const bool is = is_noticed(wrong.operations.at(0));
      noticed += is ? 1 : 0;
      // A source may have no weight where scores are large.
      EXPECT_TRUE(is || operation.name.ends_with("large scores"))
          << operation.name << ", input " << i;
    }
    EXPECT_GT(noticed, 0) << operation.name;
  }
}

TEST(VerifyOperations, NoticesGradientsOfAnotherSizeInEveryOperation) {
  int with_backward = 0;
  for (const OperationProblems& operation : all_operation_problems()) {
    if (!operation.backward) continue;
    ++with_backward;
    // The same numbers, and twice their gradients.
    const Verification wrong = verify_with(operation, [](Tensors in) {
      for (at::Tensor& input : in) input = 2 * input - input.detach();
      return in;
    });
    if (wrong.operations.empty()) continue;
    EXPECT_FALSE(is_noticed(wrong.operations.at(0))) << operation.name;
    EXPECT_TRUE(is_noticed(wrong.operations.at(1))) << operation.name;
  }
  EXPECT_GE(with_backward, 11);
}

TEST(VerifyOperations, CountsWhatTheProcessorDoesNotHave) {
  OperationProblems operation = all_operation_problems().at(0);
  operation.problems = {operation.problems.back()};
  operation.large = operation.problems[0];
  EXPECT_TRUE(verify_operations({operation}, 1).skipped.empty());
  operation.on_this_processor = [](at::ScalarType dtype) { return dtype != at::kBFloat16; };
  const Verification verification = verify_operations({operation}, 1);
  EXPECT_EQ(verification.operations.size(), 4U);
  ASSERT_EQ(verification.skipped.size(), 2U);
  EXPECT_EQ(verification.skipped[0].name, "depth attention, forward");
  EXPECT_EQ(verification.skipped[1].name, "depth attention, backward");
  EXPECT_EQ(verification.skipped[1].storage, "bfloat16");
}

TEST(VerifyOperations, FindsResultsThatDependOnTheNumberOfThreads) {
  OperationProblems operation = one_problem(all_operation_problems().at(0));
  operation.backward.reset();
  EXPECT_TRUE(verify_operations({operation}, 1).operations.at(0).same_bits);
  operation.large.compute = [compute = operation.large.compute](const Tensors& inputs) -> Tensors {
    return {compute(inputs)[0] + at::get_num_threads()};
  };
  const int threads = at::get_num_threads();
  at::set_num_threads(2);
  EXPECT_FALSE(verify_operations({operation}, 1).operations.at(0).same_bits);
  at::set_num_threads(threads);
}

}  // namespace
}  // namespace attnres::testing::verify_operations_test
