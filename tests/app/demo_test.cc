// scripts/demo, with programs in the place of what it sets up and trains.
#include <gmock/gmock.h>

#include <filesystem>

#include "tests/app/program.h"
#include "tests/report/fake_run.h"

namespace attnres::testing::demo_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// Short runs flatter Block AttnRes: whoever sees the lead is told so, there and on the page.
TEST(Demo, SaysThatItsLeadIsOfAShortTraining) {
  const fs::path folder = fresh_folder("demo");
  for (const char* name : {"scripts", "build", "demo"}) fs::create_directories(folder / name);
  fs::copy(fs::path(ATTNRES_SOURCE_DIR) / "scripts/demo", folder / "scripts/demo");
  const auto program = [&](const fs::path& file, const std::string& text) {
    write_text(folder / file, "#!/bin/sh\n" + text);
    fs::permissions(folder / file, fs::perms::owner_all);
  };
  program("scripts/setup", "");
  // "Trains" by copying a run: attnres train --recipe .. --out demo/NAME.
  FakeRun{.name = "residual"}.write(folder / "runs/residual");
  FakeRun{.name = "block", .mechanism = "block_attn_res", .gain = 0.2}.write(folder /
                                                                             "runs/block_attn_res");
  program("build/attnres",
          "if [ \"$1\" = train ]; then cp -r \"runs/${5#demo/}\" \"$5\"\n"
          "else exec '" ATTNRES_PROGRAM "' \"$@\"; fi\n");
  const Result result = run_shell(fmt::format("'{}'", (folder / "scripts/demo").string()));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::string page = read_file(folder / "demo/report.html");
  for (const char* said : {"flatter", "0.006", "0.022"}) {
    EXPECT_THAT(result.out, HasSubstr(said));
    EXPECT_THAT(page, HasSubstr(said));
  }
}

}  // namespace
}  // namespace attnres::testing::demo_test
