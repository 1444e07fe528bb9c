// A run that an earlier version began (tests/fixtures/interrupted_run, version_0_1) goes on as it
// would have there.
#include <gtest/gtest.h>

#include "attnres/parallel/mpi_communicator.h"
#include "tests/end_to_end/runs.h"
#include "tests/larger.h"
#include "tests/parallel/mpirun.h"

namespace attnres::testing::earlier_run_test {
namespace {

namespace fs = std::filesystem;

const fs::path kFixtures = fs::path(ATTNRES_SOURCE_DIR) / "tests/fixtures";
const fs::path kText = kFixtures / "interrupted_run/text.txt";

RunPaths copy_of(const std::string& fixture) {
  const RunPaths run{fresh_folder("runs") / "run"};
  fs::copy(kFixtures / fixture, run.folder, fs::copy_options::recursive);
  return run;
}

// Metrics of a fixture's run after it has gone on; without its moments if it is `forgetful`.
std::vector<Json> gone_on(const std::string& fixture, bool forgetful) {
  const RunPaths run = copy_of(fixture);
  if (forgetful) zero_moments(run, "mom");
  at::set_num_threads(1);
  attnres::train({.recipe = parse_recipe(read_run_json(run).at("recipe")),
                  .data = {kText},
                  .out = run.folder,
                  .resume = true});
  return read_lines(run.metrics());
}

// The largest relative difference of any loss; infinite where one is missing.
double difference(const std::vector<Json>& lines, const std::vector<Json>& expected) {
  if (lines.size() != expected.size()) return INFINITY;
  double largest = 0;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (lines[i]["step"] != expected[i]["step"] || lines[i]["lr"] != expected[i]["lr"]) {
      return INFINITY;
    }
    for (const char* key : {"loss", "val_loss"}) {
      if (lines[i].contains(key) != expected[i].contains(key)) return INFINITY;
      if (!lines[i].contains(key)) continue;
      const double loss = expected[i][key];
      largest = larger(largest, std::abs(lines[i][key].get<double>() - loss) / loss);
    }
  }
  return largest;
}

// Another machine, or sums in another order, change losses of this run by 1e-7.
TEST(EarlierRun, GoesOnToTheSameLosses) {
  for (const auto& [fixture, losses] :
       {std::pair("interrupted_run/run", "interrupted_run/straight.jsonl"),
        std::pair("version_0_1/run", "version_0_1/run.jsonl")}) {
    const std::vector<Json> straight = read_lines(kFixtures / losses);
    ASSERT_EQ(straight.size(), 40u) << fixture;
    EXPECT_LT(difference(gone_on(fixture, false), straight), 1e-5) << fixture;
    EXPECT_GT(difference(gone_on(fixture, true), straight), 1e-3) << fixture;
  }
}

// Of two processes, in shards.
TEST(EarlierRun, OfManyProcessesGoesOnToTheSameLosses) {
  if (!has_mpi()) GTEST_SKIP() << "this build has no MPI";
  const RunPaths run = copy_of("version_0_1/shards");
  const Result result =
      run_shell(mpirun(2, fmt::format("'{}' train --threads 1 --resume --data {} --out {}",
                                      ATTNRES_PROGRAM, quoted(kText), quoted(run.folder))));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_LT(
      difference(read_lines(run.metrics()), read_lines(kFixtures / "version_0_1/shards.jsonl")),
      1e-5);
}

}  // namespace
}  // namespace attnres::testing::earlier_run_test
