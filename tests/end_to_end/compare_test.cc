// From a text to a page with one command.
#include <gmock/gmock.h>

#include <regex>

#include "attnres/study/study_folder.h"
#include "tests/end_to_end/runs.h"
#include "tests/study/tiny_study.h"

namespace attnres::testing::compare_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class Compare : public ::testing::Test {
 protected:
  Compare() { attnres::write_text(data_, real_text(80000)); }

  // Wide, since where a line ends depends on times that this machine was measured to take.
  Result compare(const std::string& more = "") const {
    return run_shell(
        fmt::format("COLUMNS=1000 attnres compare --out {} {}", quoted(paths_.folder), more));
  }
  std::string data() const { return "--data " + quoted(data_); }

  const fs::path base_ = fresh_folder("compare");
  const fs::path data_ = base_ / "text.txt";
  const StudyPaths paths_{base_ / "out"};
};

TEST_F(Compare, TrainsWhatItChoseAndGoesOnWithIt) {
  const Result first = compare(data() + " --smoke --mechanisms residual,block_attn_res");
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_THAT(first.out, AllOf(Not(HasSubstr("runs of a model")), HasSubstr("2 runs, 2 done"),
                               HasSubstr("report.html")));
  EXPECT_EQ(read_json(paths_.study_json()).at("runs").size(), 2u);
  EXPECT_TRUE(fs::exists(paths_.report()));

  auto before = contents(paths_.folder);
  const Result second = compare("--smoke");
  EXPECT_EQ(second.exit_code, 0) << second.err;
  EXPECT_THAT(second.out, AllOf(HasSubstr(": goes on with"), HasSubstr("2 runs, 2 done")));
  EXPECT_TRUE(contents(paths_.folder) == before);
  // It is a study.
  const Result study =
      run_program(fmt::format("study {} --smoke --dry-run --out {}",
                              quoted(paths_.folder / "compare.json"), quoted(paths_.folder)));
  EXPECT_EQ(study.exit_code, 0) << study.err;
  EXPECT_THAT(study.out, AllOf(HasSubstr("block_attn_res-seed1"), HasSubstr("done"),
                               Not(HasSubstr("missing"))));
  // One mechanism more.
  const Result more = compare("--smoke --dry-run --mechanisms residual,block_attn_res,lime");
  EXPECT_THAT(more.out, AllOf(HasSubstr("lime-seed1"), HasSubstr("missing"), HasSubstr("done")));
}

TEST_F(Compare, TriesAllOfItWhereTheRealRunsWillNotLie) {
  const auto compare_here = [&](const std::string& more) {
    return run_shell(fmt::format("cd {} && attnres compare {} --mechanisms residual {}",
                                 quoted(base_), data(), more));
  };
  ASSERT_EQ(compare_here("--smoke").exit_code, 0);
  EXPECT_TRUE(fs::exists(StudyPaths{base_ / "studies" / "compare-smoke"}.report()));
  const Result plan = compare_here("--dry-run");
  EXPECT_EQ(plan.exit_code, 0) << plan.err;
  EXPECT_THAT(plan.out, HasSubstr("missing"));
}

// The plan that was shown is the plan that runs: not what the machine seems to be seconds later.
TEST_F(Compare, TrainsWhatItsDryRunShowed) {
  const std::string command = data() + " --seeds 1 --hours 1 --mechanisms residual ";
  const auto show = [&](const std::string& more = "") {
    const Result result = compare(command + "--dry-run " + more);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  };
  const auto steps = [&] {
    return read_json(paths_.folder / "compare.json").at("base").at("train").at("steps");
  };
  const std::string shown = show();
  EXPECT_EQ(contents(paths_.folder).size(), 1u);
  // As if it had been planned on a machine that is much faster now.
  Json kept = read_json(paths_.folder / "compare.json");
  for (const char* speed : {"matmul", "copy"}) {
    kept["chosen"]["speeds"][speed] = kept["chosen"]["speeds"][speed].get<double>() / 50;
  }
  kept["base"]["train"]["steps"] = 7;
  attnres::write_text(paths_.folder / "compare.json", kept.dump());
  const std::string again = show();
  EXPECT_THAT(again, HasSubstr("0/7"));
  EXPECT_EQ(steps(), 7);
  EXPECT_EQ(show(), again);  // to the second
  // For something else it chooses anew.
  EXPECT_THAT(show("--tune"), Not(HasSubstr("0/7")));
  EXPECT_NE(steps(), 7);

  attnres::write_text(paths_.folder / "compare.json", kept.dump());
  const Result trained = compare(command);
  EXPECT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_EQ(read_json(paths_.study_json()).at("runs").at(0).at("steps"), 7);
}

// One total, whoever tells it.
TEST_F(Compare, TellsOneTotal) {
  const Result plan = compare(data() + " --dry-run --hours 1 --mechanisms residual,dca");
  std::smatch told, left;
  ASSERT_TRUE(std::regex_search(plan.out, told, std::regex("takes about ([^ ]+) on this machine")));
  ASSERT_TRUE(std::regex_search(plan.out, left, std::regex("about ([^ ]+) left")));
  EXPECT_EQ(told[1], left[1]);
}

TEST_F(Compare, TriesLearningRatesForEachMechanism) {
  const Result plan = compare(data() + " --dry-run --tune --seeds 1 --mechanisms residual,lime");
  EXPECT_EQ(plan.exit_code, 0) << plan.err;
  EXPECT_THAT(plan.out, AllOf(HasSubstr("trial-lime-"), HasSubstr("10 runs: "),
                              HasSubstr("best for it in trials of a quarter of the steps")));
  const Result smoke = compare(data() + " --tune --smoke --mechanisms residual --threads 1");
  EXPECT_EQ(smoke.exit_code, 0) << smoke.err;
  EXPECT_THAT(smoke.out, HasSubstr("3 runs, 3 done"));
  EXPECT_EQ(read_json(paths_.study_json()).at("threads"), 1);
  EXPECT_EQ(read_json(paths_.study_json()).at("smoke"), true);
  const Result other = compare("--smoke --threads 2");
  EXPECT_EQ(other.exit_code, 1);
  EXPECT_THAT(other.err, HasSubstr("this study began with 1 thread a run"));
}

TEST_F(Compare, DryRunKeepsItsChoiceAlone) {
  const Result plan = compare(
      data() + " --dry-run --seeds 2 --hours 90m --mechanisms 'residual, block_attn_res,attn_res'");
  EXPECT_EQ(plan.exit_code, 0) << plan.err;
  EXPECT_THAT(plan.out, AllOf(HasSubstr("6 runs of a model with 8 Transformer layers of width 32"),
                              HasSubstr("There is text for"), HasSubstr("attn_res-seed2"),
                              HasSubstr("missing"), HasSubstr("learning rate 0.003 sqrt(128")));
  EXPECT_EQ(contents(paths_.folder).size(), 1u);
}

TEST_F(Compare, RefusesWithNothingLost) {
  const auto expect_refused = [](const Result& result, int exit_code, const std::string& why) {
    EXPECT_EQ(result.exit_code, exit_code);
    EXPECT_THAT(result.err, HasSubstr(why));
  };
  expect_refused(compare(data() + " --mechanisms residual,attnres"), 2, "did you mean attn_res?");
  expect_refused(compare(data() + " --mechanisms 'residual, mhx'"), 2, "mhx: no such mechanism");
  expect_refused(compare(data() + " --hours 0"), 2, "--hours: expected a time from 36s to");
  expect_refused(compare(data() + " --hours soon"), 2, "2h, 90m or 45s");
  expect_refused(compare("--data " + quoted(base_ / "nothing")), 1, "nothing");
  EXPECT_FALSE(fs::exists(paths_.folder));

  fs::create_directories(paths_.folder);
  attnres::write_text(paths_.study_json(), R"({"study": "other", "data": [], "threads": 1,
                                               "runs": []})");
  const auto before = contents(paths_.folder);
  expect_refused(compare(data()), 1, "holds the study other");
  EXPECT_TRUE(contents(paths_.folder) == before);
}

}  // namespace
}  // namespace attnres::testing::compare_test
