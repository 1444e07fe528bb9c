#include "attnres/ops/operation_problems.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>

#include "attnres/support/file.h"
#include "tests/tolerances.h"

namespace attnres::testing::operation_problems_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using Tensors = std::vector<at::Tensor>;

// The folders of attnres/ops that have a file of this name.
std::set<std::string> folders_with(const char* file) {
  std::set<std::string> folders;
  for (const auto& entry : fs::directory_iterator(ATTNRES_SOURCE_DIR "/attnres/ops")) {
    if (fs::exists(entry.path() / file)) folders.insert(entry.path().filename());
  }
  return folders;
}

TEST(OperationProblems, AreInEveryFolderWithAKernel) {
  const std::set<std::string> with_kernel = folders_with("kernel_simd.cc"),
                              with_problems = folders_with("problems.cc");
  EXPECT_GE(with_kernel.size(), 15U);
  EXPECT_THAT(with_problems, IsSupersetOf(with_kernel));
  std::set<std::string> listed;
  for (const OperationFolder& folder : operation_folders()) {
    EXPECT_TRUE(listed.insert(std::string(folder.name)).second) << folder.name;
    EXPECT_FALSE(folder.problems().empty()) << folder.name;
  }
  EXPECT_EQ(listed, with_problems);
}

TEST(OperationProblems, AreOnTheirPage) {
  const std::string page = read_file(ATTNRES_SOURCE_DIR "/docs/verify.md");
  std::set<std::string> names;
  for (const OperationProblems& operation : all_operation_problems()) {
    EXPECT_TRUE(names.insert(operation.name).second) << operation.name;
    EXPECT_THAT(page, HasSubstr("\n| " + operation.name + " |"));
  }
}

// The largest change in the results of the formula.
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
      EXPECT_GT(largest_change(problem, changed), 10 * operation.forward.bfloat16.value())
          << operation.name << ", input " << i;
    }
  }
  EXPECT_EQ(operations, 2);
}

}  // namespace
}  // namespace attnres::testing::operation_problems_test
