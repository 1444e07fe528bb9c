#include <gmock/gmock.h>

#include "tests/app/program.h"
#include "tests/report/fake_run.h"

namespace attnres::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(WatchCommand, PrintsOneFrameWhereThereIsNoTerminal) {
  const std::filesystem::path folder = fresh_folder("watch");
  const FakeRun run{.name = "mine", .mechanism = "attn_res"};
  const auto path = run.write(folder / "run");
  const Result result = run_program(fmt::format("watch '{}'", path.string()));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("mine  attn_res, 4 layers"));
  EXPECT_THAT(result.out, HasSubstr("step 200/201"));
  EXPECT_THAT(result.out, Not(HasSubstr("\x1b")));
  EXPECT_EQ(run_program(fmt::format("watch --once '{}'", path.string())).out, result.out);

  const Result refused = run_program(fmt::format("watch '{}'", folder.string()));
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, HasSubstr("expected the folder of a run or of a study"));
  // What compare --dry-run leaves.
  write_text(folder / "compare.json", "{}");
  for (const char* command : {"watch --once", "report"}) {
    const Result untrained = run_program(fmt::format("{} '{}'", command, folder.string()));
    EXPECT_EQ(untrained.exit_code, 1);
    EXPECT_THAT(untrained.err, AllOf(HasSubstr("nothing is trained here yet"),
                                     HasSubstr("the same compare command without --dry-run")));
  }
  write_text(folder / "study.json", "{}");
  for (const char* command : {"watch", "report"}) {
    for (const char* part : {"runs", "study.json"}) {
      const Result hinted = run_program(fmt::format("{} '{}'", command, (folder / part).string()));
      EXPECT_EQ(hinted.exit_code, 2);
      EXPECT_THAT(hinted.err, HasSubstr("did you mean its folder, " + folder.string() + "?"));
    }
  }
}

}  // namespace
}  // namespace attnres::testing
