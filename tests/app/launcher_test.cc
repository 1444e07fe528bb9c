// The command attnres (app/launcher/): what it answers itself, and how it starts the program.
#include <gmock/gmock.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "app/command_text.h"
#include "tests/app/program.h"

namespace attnres::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

namespace fs = std::filesystem;

// A folder with the launcher alone.
fs::path launcher_alone() {
  const fs::path folder = fresh_folder("launcher alone");
  fs::copy_file(ATTNRES_PROGRAM, folder / "attnres");
  return folder;
}

std::vector<std::string> names_of_commands() {
  const auto text = Json::parse(run_program("help --json").out).get<ProgramText>();
  std::vector<std::string> names;
  for (const CommandGroup& group : text.groups) {
    for (const CommandText& command : group.commands) names.push_back(command.name);
  }
  return names;
}

TEST(Launcher, ShowsTheProgramsHelpWithoutIt) {
  const std::string folder = launcher_alone().string();
  std::vector<std::string> questions = {"--help", "-h", "help", "--version"};
  for (const std::string& name : names_of_commands()) {
    questions.push_back(name + " --help");
    questions.push_back("help " + name);
  }
  ASSERT_GT(questions.size(), 40);
  for (const std::string& question : questions) {
    const Result shown = run_shell(fmt::format("PATH='{}':$PATH; attnres {}", folder, question));
    EXPECT_EQ(shown.exit_code, 0) << question;
    EXPECT_EQ(shown.out, run_program(question).out) << question;
    EXPECT_EQ(shown.err, "");
  }
}

TEST(Launcher, StartsTheProgramForEverythingElse) {
  // Words that only look like questions for help.
  for (const char* words :
       {"train --help --json", "help nothing", "nothing --help", "help --json --",
        "--version --help", "help train eval", "-- --help", ""}) {
    const std::string arguments = words;
    const Result started = run_shell("attnres " + arguments), expected = run_program(arguments);
    EXPECT_EQ(started.exit_code, expected.exit_code) << words;
    EXPECT_EQ(started.out, expected.out) << words;
    EXPECT_EQ(started.err, expected.err) << words;
  }
}

TEST(Launcher, FailsWhereNobodyCanBeTold) {
  for (const char* line : {"attnres --help >/dev/full 2>&-", "attnres --help <&- >&- 2>&-"}) {
    EXPECT_EQ(run_shell(line).exit_code, 1) << line;
  }
  const std::string file = (fresh_folder("launcher") / "help").string();
  const Result limited = run_shell("(ulimit -f 0; attnres --help > '" + file + "' 2>/dev/null)");
  EXPECT_EQ(limited.exit_code, 1);
}

TEST(Launcher, SaysWhereThereIsNoProgram) {
  const fs::path folder = launcher_alone();
  const Result result = run_shell("'" + (folder / "attnres").string() + "' doctor");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, StartsWith("attnres: error: cannot start "));
  EXPECT_THAT(result.err, HasSubstr((folder / "attnres-program").string() + ": No such file"));
}

}  // namespace
}  // namespace attnres::testing
