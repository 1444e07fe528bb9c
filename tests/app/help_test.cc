// What --help and the tables look like: they keep to the terminal's width.
#include <fmt/core.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "attnres/support/program.h"
#include "tests/app/program.h"

namespace attnres::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string in_columns(const std::string& columns, const std::string& arguments) {
  const Result result =
      run_shell(columns.empty() ? "unset COLUMNS; attnres " + arguments
                                : fmt::format("export COLUMNS={}; attnres {}", columns, arguments));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return result.out;
}

// The widest line of ASCII text; without examples where they may be wider than the terminal.
size_t widest(const std::string& text, bool with_examples = true) {
  std::istringstream lines(text);
  size_t width = 0;
  for (std::string line; std::getline(lines, line);) {
    const bool example = line.starts_with("  attnres ") || line.starts_with("  mpirun ");
    if (with_examples || !example) width = std::max(width, line.size());
  }
  return width;
}

const std::vector<std::string> kCommands = {
    "train",    "eval",   "score",   "generate", "inspect",  "mechanisms", "import",
    "export",   "report", "study",   "doctor",   "retrofit", "verify",     "vectors",
    "diagnose", "watch",  "compare", "serve",    "tokenize", "plan",       "help"};

TEST(Help, KeepsToTheWidthOfTheTerminal) {
  for (const std::string& command : kCommands) {
    SCOPED_TRACE(command);
    EXPECT_LE(widest(in_columns("60", command + " --help"), /*with_examples=*/false), 60u);
  }
  for (const char* command : {"study", "vectors"}) {
    SCOPED_TRACE(command);
    EXPECT_LE(widest(in_columns("", fmt::format("{} --help", command))), 100u);  // no terminal
  }
  EXPECT_LE(widest(in_columns("80", "train --help")), 80u);
  EXPECT_GT(widest(in_columns("", "train --help")), 80u);
  EXPECT_GT(widest(in_columns("140", "train --help")), 100u);
  EXPECT_LE(widest(in_columns("60", "--help")), 60u);
}

TEST(Help, IsACommandToo) {
  const std::string help = run_program("help").out;
  EXPECT_EQ(help, run_program("--help").out);
  for (const std::string& command : kCommands) {
    EXPECT_THAT(help, HasSubstr("\n  " + command + " "));
  }
  for (const char* command : {"train", "retrofit"}) {
    EXPECT_EQ(run_program(fmt::format("help {}", command)).out,
              run_program(fmt::format("{} --help", command)).out);
  }
  const Result unknown = run_program("help trian");
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("unknown command trian: did you mean train?"));
}

TEST(CommandLine, SaysWhatToDoAboutAWordThatItDoesNotKnow) {
  const auto expect_refused = [](const std::string& arguments, const std::string& message) {
    const Result result = run_program(arguments);
    EXPECT_EQ(result.exit_code, 2) << arguments;
    EXPECT_THAT(result.err, ::testing::StartsWith("attnres: error: " + message + "; see attnres "));
  };
  expect_refused("train --recipes x", "unknown option --recipes: did you mean --recipe?");
  // What is far from all that is known is not guessed at.
  expect_refused("compare --set x", "unknown option --set");
  expect_refused("train --dry-run", "unknown option --dry-run");
  expect_refused("nosuch", "unknown command nosuch");
  expect_refused("help nosuch", "unknown command nosuch");
  // Words that stand alone.
  expect_refused("compare book.txt", "compare: unexpected book.txt; give text with --data");
  expect_refused("generate Once", "generate: unexpected Once; give a prompt with --prompt");
  expect_refused("watch a b", "watch: unexpected b; it takes one folder");
  expect_refused("watch", "watch: name a run's or a study's folder");
  expect_refused("report", "report: name run folders, or the folder of one study");
}

TEST(CommandLine, PrintsItsCommandsAsItWasTyped) {
  const std::string typed = ATTNRES_PROGRAM;
  const auto by_path = [&](const std::string& arguments) {
    return run_shell(fmt::format("'{}' {}", typed, arguments));
  };
  EXPECT_THAT(
      by_path("train --help").out,
      AllOf(HasSubstr("\n  " + typed + " train --recipe "), HasSubstr(" " + typed + " train "),
            HasSubstr(" -n 2 " + typed + " train"), Not(HasSubstr(" attnres train"))));
  EXPECT_THAT(run_program("train --help").out,
              AllOf(HasSubstr("\n  attnres train --recipe "), Not(HasSubstr(typed))));
  EXPECT_THAT(by_path("trian").err, HasSubstr("see " + typed + " --help"));
  EXPECT_THAT(run_program("trian").err, HasSubstr("see attnres --help"));
  const std::string recipe =
      "train --recipe '" ATTNRES_SOURCE_DIR "/recipes/tiny-block-attn-res.json' --out '" +
      (fresh_folder("typed") / "run").string() + "' --set parallel.data=2 train.accumulate=2";
  EXPECT_THAT(by_path(recipe).err, HasSubstr(mpirun_command(2) + " " + typed + " train"));
}

TEST(MechanismsTable, KeepsToTheWidthOfTheTerminal) {
  const std::string small = "mechanisms --layers 2 --width 32";
  const std::string narrow = in_columns("80", small), wide = in_columns("120", small);
  EXPECT_LE(widest(narrow), 80u);
  EXPECT_THAT(narrow, Not(HasSubstr("2603.15031")));
  EXPECT_LE(widest(wide), 120u);
  EXPECT_THAT(wide, HasSubstr("2603.15031"));
  EXPECT_LE(widest(in_columns("", small)), 100u);
  EXPECT_GT(widest(in_columns("160", small)), 120u);
  for (const char* name : {"block_attn_res", "hyper_connections", "dense_former"}) {
    EXPECT_LE(widest(in_columns("60", small + " " + name)), 60u) << name;
  }
}

}  // namespace
}  // namespace attnres::testing
