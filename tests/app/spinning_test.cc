// How long waiting threads spin (app/launcher/launcher.cc), as libgomp itself reports it.
#include <gmock/gmock.h>

#include <string>

#include "tests/app/program.h"

namespace attnres::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Result run_with(const std::string& settings) {
  return run_shell("unset GOMP_SPINCOUNT OMP_WAIT_POLICY; export OMP_DISPLAY_ENV=verbose " +
                   settings + "; attnres help --json");
}

TEST(Spinning, EndsSoon) {
  const Result result = run_with("");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("GOMP_SPINCOUNT = '10000'"));
}

TEST(Spinning, IsAsLongAsUsersSay) {
  EXPECT_THAT(run_with("GOMP_SPINCOUNT=77").err, HasSubstr("GOMP_SPINCOUNT = '77'"));
  const std::string active = run_with("OMP_WAIT_POLICY=ACTIVE").err;
  EXPECT_THAT(active, HasSubstr("OMP_WAIT_POLICY = 'ACTIVE'"));
  EXPECT_THAT(active, Not(HasSubstr("GOMP_SPINCOUNT = '10000'")));
}

// The program is called as the command was.
TEST(Spinning, LeavesTheArguments) {
  const std::string command = "attnres 'a  b'";
  const Result anew = run_shell("unset GOMP_SPINCOUNT OMP_WAIT_POLICY; " + command);
  EXPECT_THAT(anew.err, HasSubstr("a  b"));
  EXPECT_EQ(anew.err, run_shell("export GOMP_SPINCOUNT=77; " + command).err);
}

}  // namespace
}  // namespace attnres::testing
