#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "attnres/support/json.h"
#include "tests/app/program.h"

namespace attnres::testing::doctor_test {
namespace {

using ::testing::HasSubstr;

TEST(Doctor, DescribesTheMachineAndNamesARecipeThatExists) {
  const Result result = run_program("doctor --json");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json report = parse_json(result.out, "doctor");
  const Json& machine = report.at("machine");
  EXPECT_GE(machine.at("cores").get<int>(), 1);
  EXPECT_GT(machine.at("memory_bytes").get<int64_t>(),
            machine.at("available_bytes").get<int64_t>());
  EXPECT_FALSE(machine.at("speed").empty());
  for (const Json& speed : machine.at("speed")) {
    EXPECT_GT(speed.at("copy_gb_per_s").get<double>(), 0);
    EXPECT_GT(speed.at("matmul_gflop_per_s").get<double>(), 0);
  }
  EXPECT_GT(machine.at("weights_read_gb_per_s").get<double>(), 0);
  EXPECT_FALSE(report.at("build").at("kernel_instruction_sets").empty());
  const Json& next = report.at("next");
  if (next.is_null()) GTEST_SKIP() << "no recipe trains here in an hour";
  EXPECT_TRUE(std::filesystem::exists(next.at("recipe").get<std::string>()));
  EXPECT_THAT(next.at("command").get<std::string>(), HasSubstr("attnres train --recipe"));
  EXPECT_LE(next.at("seconds").get<double>(), 3600);
  EXPECT_LE(next.at("seconds_at_least").get<double>(), next.at("seconds").get<double>());
  EXPECT_GE(next.at("seconds_at_most").get<double>(), next.at("seconds").get<double>());
  // What it does meanwhile, which is not in the way of the JSON.
  EXPECT_THAT(result.err, HasSubstr("measuring how fast memory is copied"));
  EXPECT_LT(next.at("bytes").get<int64_t>(), machine.at("available_bytes").get<int64_t>());
}

}  // namespace
}  // namespace attnres::testing::doctor_test
