#include "attnres/support/process.h"

#include <gmock/gmock.h>

#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "tests/text/test_files.h"

namespace attnres::testing::process_test {
namespace {

using ::testing::HasSubstr;

struct Ended {
  int exit_code;
  std::string output;
};

Ended run_sh(const std::string& line, std::vector<int> cpus = {},
             const std::filesystem::path& program = "/bin/sh") {
  const auto output = fresh_folder("process") / "output";
  ChildProcess child(
      {.program = program, .arguments = {"-c", line}, .output = output, .cpus = std::move(cpus)});
  while (child.is_running()) {
  }
  return {child.exit_code(), read_file(output)};
}

TEST(ChildProcess, KeepsOutputAndExitCode) {
  const Ended ended = run_sh("echo out; echo err >&2; exit 3");
  EXPECT_EQ(ended.exit_code, 3);
  EXPECT_EQ(ended.output, "out\nerr\n");
  EXPECT_EQ(run_sh("kill -9 $$").exit_code, 128 + 9);
  const Ended none = run_sh("", {}, "/nowhere/program");
  EXPECT_EQ(none.exit_code, 127);
  EXPECT_THAT(none.output, HasSubstr("/nowhere/program: No such file"));
}

TEST(ChildProcess, KeepsErrorsApartWhereAsked) {
  const auto folder = fresh_folder("process");
  ChildProcess child({.program = "/bin/sh",
                      .arguments = {"-c", "echo out; echo err >&2"},
                      .output = folder / "output",
                      .errors = folder / "errors"});
  while (child.is_running()) {
  }
  EXPECT_EQ(read_file(folder / "output"), "out\n");
  EXPECT_EQ(read_file(folder / "errors"), "err\n");
}

TEST(ChildProcess, IsInterrupted) {
  const auto output = fresh_folder("process") / "output";
  const std::string line = "trap 'exit 7' INT; echo ready; while :; do :; done";
  ChildProcess child({.program = "/bin/sh", .arguments = {"-c", line}, .output = output});
  while (!std::filesystem::exists(output) || read_file(output).empty()) {
  }
  EXPECT_TRUE(child.is_running());
  child.interrupt();
  while (child.is_running()) {
  }
  EXPECT_EQ(child.exit_code(), 7);
}

TEST(ChildProcess, KeepsToItsProcessors) {
  const std::vector<int> all = usable_cpus();
  ASSERT_FALSE(all.empty());
  const int last = all.back();
  const Ended ended = run_sh("grep Cpus_allowed_list /proc/self/status", {last});
  EXPECT_EQ(ended.output, fmt::format("Cpus_allowed_list:\t{}\n", last));
}

}  // namespace
}  // namespace attnres::testing::process_test
