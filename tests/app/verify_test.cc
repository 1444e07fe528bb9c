#include <gmock/gmock.h>

#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "attnres/ops/depth_attention/depth_attention.h"
#include "attnres/ops/small_products/small_products.h"
#include "attnres/support/json.h"
#include "tests/app/program.h"

namespace attnres::testing::verify_test {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::UnorderedElementsAre;

TEST(Verify, FindsThisMachinesKernelsRight) {
  const Result result = run_program("verify");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  for (const std::string& name : depth_attention_instruction_sets()) {
    EXPECT_THAT(result.out, HasSubstr(name));
  }
  EXPECT_THAT(result.out, ContainsRegex("\nverify: ok: worst error [^\n]* s\n$"));

  // Each operation that this processor does not have has a line, and counts.
  const std::regex skipped_line("skipped: not on this processor\n");
  const auto lines =
      std::distance(std::sregex_iterator(result.out.begin(), result.out.end(), skipped_line),
                    std::sregex_iterator());
  EXPECT_THAT(result.out, ContainsRegex(fmt::format(" compared, {} skipped, [^\n]* s\n$", lines)));
}

TEST(Verify, ReportsEveryOperationInEveryStorageTypeAsJson) {
  const Result result = run_program("verify --json");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json report = parse_json(result.out, "verify");
  EXPECT_TRUE(report.at("ok").get<bool>());
  const Json& operations = report.at("operations");
  EXPECT_GE(operations.size(), 80U);
  std::set<std::string> names;
  std::map<std::string, std::set<std::string>> storages;
  for (const Json& operation : operations) {
    const std::string name = operation.at("operation").get<std::string>();
    names.insert(name);
    storages[name].insert(operation.at("storage").get<std::string>());
    EXPECT_TRUE(operation.at("same_bits").get<bool>());
    ASSERT_EQ(operation.at("errors").size(), depth_attention_instruction_sets().size());
    for (const Json& error : operation.at("errors")) {
      EXPECT_LE(error.get<double>(), operation.at("bound").get<double>());
      if (operation.at("bound").get<double>() == 0) continue;  // numbers are moved only
      EXPECT_GT(error.get<double>(), 0) << operation;          // it was computed in another way
    }
  }
  EXPECT_THAT(names,
              IsSupersetOf(
                  {"depth attention, forward", "two-phase, backward", "gated delta rule, forward",
                   "gated delta rule by chunks, forward", "gated delta rule by chunks, backward",
                   "SiTU, forward", "Sinkhorn, backward", "residual streams, backward",
                   "depth scores, backward", "delta attention, forward", "paged attention, forward",
                   "head maps, forward", "streaming product, q4_0, forward"}));
  for (const char* name :
       {"depth attention, forward", "depth attention, backward",
        "depth attention, large scores, forward", "two-phase, forward", "two-phase, backward",
        "two-phase, large scores, forward", "addition and RMSNorm, forward",
        "addition and RMSNorm, backward", "SwiGLU, forward", "SwiGLU, backward", "rotary, forward",
        "rotary, backward", "gated delta rule, forward", "gated delta rule by chunks, forward",
        "gated delta rule by chunks, backward"}) {
    EXPECT_THAT(storages[name], UnorderedElementsAre("float32", "float64", "bfloat16")) << name;
  }

  const bool has_all = has_small_products(at::kFloat) && has_small_products(at::kBFloat16);
  EXPECT_EQ(report.at("skipped").empty(), has_all);
  for (const Json& skipped : report.at("skipped")) {
    EXPECT_EQ(storages[skipped.at("operation").get<std::string>()].count(
                  skipped.at("storage").get<std::string>()),
              0U)
        << skipped;
  }
}

// Every kernel is wrong if it may not even round.
TEST(Verify, FailsWhereAnErrorIsOverItsBound) {
  const Result result = run_program("verify --bound-factor 1e-3");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out, HasSubstr(" !"));
  EXPECT_THAT(result.err, HasSubstr("attnres: error: verify: worst error "));
  for (const char* factor : {"0", "large"}) {
    const Result refused = run_program(fmt::format("verify --bound-factor {}", factor));
    EXPECT_EQ(refused.exit_code, 2);
    EXPECT_THAT(refused.err,
                HasSubstr(fmt::format("expected a number from 1e-09 to 1e+09, got {}", factor)));
  }
}

}  // namespace
}  // namespace attnres::testing::verify_test
