// A run that an earlier version began (tests/fixtures/interrupted_run) goes on as it would have
// there.
#include <gtest/gtest.h>

#include "tests/end_to_end/runs.h"
#include "tests/larger.h"

namespace attnres::testing::earlier_run_test {
namespace {

namespace fs = std::filesystem;

const fs::path kFixture = fs::path(ATTNRES_SOURCE_DIR) / "tests/fixtures/interrupted_run";

// Metrics of the fixture's run after it has gone on; without its moments if it is `forgetful`.
std::vector<Json> gone_on(const std::string& name, bool forgetful) {
  const RunPaths run{fresh_folder("runs") / name};
  fs::copy(kFixture / "run", run.folder, fs::copy_options::recursive);
  if (forgetful) zero_moments(run, "mom");
  at::set_num_threads(1);
  attnres::train({.recipe = parse_recipe(read_run_json(run).at("recipe")),
                  .data = {kFixture / "text.txt"},
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
  const std::vector<Json> straight = read_lines(kFixture / "straight.jsonl");
  ASSERT_EQ(straight.size(), 40u);
  EXPECT_LT(difference(gone_on("run", false), straight), 1e-5);
  EXPECT_GT(difference(gone_on("forgetful", true), straight), 1e-3);
}

}  // namespace
}  // namespace attnres::testing::earlier_run_test
