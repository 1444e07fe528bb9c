#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <set>

#include "attnres/ops/depth_attention/depth_attention.h"
#include "attnres/support/json.h"
#include "tests/app/program.h"

namespace attnres::testing::verify_test {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;

TEST(Verify, FindsThisMachinesKernelsRight) {
  const Result result = run_program("verify");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  for (const std::string& name : depth_attention_instruction_sets()) {
    EXPECT_THAT(result.out, HasSubstr(name));
  }
  EXPECT_THAT(result.out, ContainsRegex("\nverify: ok: worst error [^\n]* s\n$"));
}

TEST(Verify, ReportsEveryOperationInEveryStorageTypeAsJson) {
  const Result result = run_program("verify --json");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json report = parse_json(result.out, "verify");
  EXPECT_TRUE(report.at("ok").get<bool>());
  const Json& operations = report.at("operations");
  EXPECT_EQ(operations.size() % 3, 0U);
  EXPECT_GE(operations.size(), 39U);
  std::set<std::string> names;
  for (const Json& operation : operations) {
    names.insert(operation.at("operation").get<std::string>());
    EXPECT_TRUE(operation.at("same_bits").get<bool>());
    ASSERT_EQ(operation.at("errors").size(), depth_attention_instruction_sets().size());
    for (const Json& error : operation.at("errors")) {
      EXPECT_LE(error.get<double>(), operation.at("bound").get<double>());
      EXPECT_GT(error.get<double>(), 0) << operation;  // it was computed in another way
    }
  }
  EXPECT_THAT(names,
              IsSupersetOf({"depth attention, forward", "two-phase, backward",
                            "gated delta rule, forward", "gated delta rule by chunks, forward",
                            "gated delta rule by chunks, backward"}));
}

// Every kernel is wrong if it may not even round.
TEST(Verify, FailsWhereAnErrorIsOverItsBound) {
  const Result result = run_program("verify --bound-factor 1e-3");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out, HasSubstr(" !"));
  EXPECT_THAT(result.err, HasSubstr("attnres: error: verify: worst error "));
  EXPECT_EQ(run_program("verify --bound-factor 0").exit_code, 2);
}

}  // namespace
}  // namespace attnres::testing::verify_test
