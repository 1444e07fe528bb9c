#include "attnres/study/study_results.h"

#include <gmock/gmock.h>

#include <cmath>
#include <map>

#include "attnres/study/study_plan.h"
#include "attnres/support/machine.h"
#include "tests/study/tiny_study.h"
#include "tests/text/test_files.h"

namespace attnres::testing::study_results_test {
namespace {

using ::testing::HasSubstr;

std::vector<StudyRun> tiny_runs() {
  return plan_runs(read_study(write_study(fresh_folder("study") / "s.json", tiny_study())));
}

RunStatus done_with(double loss) {
  TrainingState saved;
  saved.step = 6;
  saved.tokens = 600;
  saved.seconds = 2;
  saved.peak_bytes = 4096;
  saved.validation_loss = saved.best_loss = loss;
  return {.state = RunState::done, .saved = saved, .parameters = 7};
}

// Residual, block, residual, block; the second block has failed.
std::vector<RunStatus> tiny_statuses() {
  return {done_with(2),
          done_with(5),
          done_with(4),
          {.state = RunState::failed, .saved = {}, .error = "a \"b\", c"}};
}

StudyRecord tiny_record(const std::vector<RunStatus>& statuses,
                        const RunPlan& plan = {.parameters = 8, .steps = 6, .flops = 30}) {
  return with_runs({.name = "tiny", .question = "?", .axes = {"mixing"}, .threads = 1}, tiny_runs(),
                   statuses, std::vector<RunPlan>(4, plan));
}

TEST(StudyResults, ArmsAreMeansOverTheSeedsThatAreDone) {
  const auto arms = arm_results(tiny_record(tiny_statuses()));
  ASSERT_EQ(arms.size(), 2u);
  EXPECT_EQ(arms[0].arms, std::vector<std::string>{"residual"});
  EXPECT_EQ(arms[0].done, 2);
  EXPECT_DOUBLE_EQ(arms[0].mean_loss, 3);
  EXPECT_DOUBLE_EQ(arms[0].loss_deviation, std::sqrt(2));
  EXPECT_DOUBLE_EQ(arms[0].tokens_per_second, 300);
  EXPECT_EQ(arms[1].runs, 2);
  EXPECT_EQ(arms[1].done, 1);
  EXPECT_DOUBLE_EQ(arms[1].mean_loss, 5);
  EXPECT_TRUE(std::isnan(arms[1].loss_deviation));
}

TEST(StudyResults, TablesHaveALineForEach) {
  const StudyRecord record = tiny_record(tiny_statuses());
  const std::string table = runs_csv(record);
  EXPECT_THAT(
      table, HasSubstr("name,mixing,seed,role,state,step,steps,parameters,tokens,flops,from,"
                       "seconds,peak_bytes,final_val_loss,best_val_loss,best_step,error\n"
                       "residual-seed1,residual,1,run,done,6,6,7,600,30.0,,2.0,4096,2.0,2.0,0,\n"));
  EXPECT_THAT(table, HasSubstr("block-seed2,block,2,run,failed,0,6,8,0,30.0,,0.0,,,,0,"
                               "\"a \"\"b\"\", c\"\n"));
  const Json json = study_json(record);
  EXPECT_THAT(arms_csv(record), HasSubstr("block,2,1,5.0,,300.0,1,3.0,,,,one seed cannot tell,\n"));
  EXPECT_EQ(json.at("runs").size(), 4u);
  EXPECT_EQ(json.at("runs").at(1).at("arms").at("mixing"), "block");
  EXPECT_EQ(json.at("runs").at(1).at("final_val_loss"), 5);
  EXPECT_TRUE(json.at("runs").at(3).at("final_val_loss").is_null());
  EXPECT_FALSE(json.at("runs").at(2).contains("error"));
}

// Differences of 3 and 5 from the residual runs of the same seeds: by hand 4 ± 12.706 * 1.
TEST(StudyResults, ArmsAreComparedWithTheBaseline) {
  auto statuses = tiny_statuses();
  statuses[3] = done_with(9);
  const std::string table = arms_csv(tiny_record(statuses));
  EXPECT_THAT(table,
              HasSubstr("mixing,runs,done,mean_val_loss,val_loss_deviation,tokens_per_second,pairs,"
                        "mean_difference,difference_low,difference_high,p_value_holm,verdict,"
                        "seeds_to_tell\nresidual,2,2,3.0,"));
  EXPECT_THAT(table, HasSubstr(",300.0,2,4.0,-8.7062047361"));
  EXPECT_THAT(table, HasSubstr(",not distinguishable,"));
}

// Counted by hand: two a multiply-add, the forward and twice as much backward.
TEST(StudyPlan, CountsAWholeRun) {
  auto runs = tiny_runs();
  runs.resize(1);
  const Recipe& recipe = runs[0].recipe;
  const double width = 32, ffn = static_cast<double>(recipe.model.ffn_width), layers = 2;
  const double attention = 32 * width;  // at most: half of 2 T D where what is masked is left out
  const double maps = layers * (4 * width * width + 3 * width * ffn) + 256 * width;
  const RunPlan plan = plan_costs(runs, measured_speeds(/*threads=*/1)).at(0);
  EXPECT_EQ(plan.steps, 6);
  EXPECT_EQ(plan.tokens, 6 * 4 * 32);
  const auto tokens = static_cast<double>(plan.tokens);
  EXPECT_GE(plan.flops, 6 * tokens * maps);
  EXPECT_LE(plan.flops, 6 * tokens * (maps + layers * 2 * attention) * 1.01);
  EXPECT_GT(plan.seconds, 0);
  EXPECT_GT(plan.bytes, 1 << 20);
  EXPECT_GT(plan.disk_bytes, 0);
  const RunPlan unmeasured = plan_costs(runs, nullptr).at(0);
  EXPECT_EQ(unmeasured.flops, plan.flops);
  EXPECT_TRUE(std::isnan(unmeasured.seconds));
}

// Each run has its own: a mechanism that mixes at half the speed takes longer by what it mixes.
TEST(StudyPlan, GoesByTheSpeedOfEachMechanism) {
  const auto file = write_study(fresh_folder("speeds") / "tiny.json", tiny_study());
  const std::vector<StudyRun> runs = plan_runs(read_study(file));
  const auto seconds = [&](double mixing_of_block) {
    std::map<std::string, double> by_name;
    const std::vector<RunPlan> plans = plan_costs(runs, [&](const Recipe& recipe) {
      const bool is_block = recipe.model.depth_mixing.name() == "block_attn_res";
      return MachineSpeed{
          .matmul = 1e11, .copy = 3e10, .mixing = is_block ? mixing_of_block : 1e10};
    });
    for (size_t i = 0; i < runs.size(); ++i) by_name[runs[i].name] = plans[i].seconds;
    return by_name;
  };
  const auto quick = seconds(1e10), slow = seconds(5e9), slower = seconds(2.5e9);
  EXPECT_EQ(quick.at("residual-seed1"), slow.at("residual-seed1"));
  const double mixed = slow.at("block-seed1") - quick.at("block-seed1");
  EXPECT_GT(mixed, 0);
  EXPECT_NEAR(slower.at("block-seed1") - slow.at("block-seed1"), 2 * mixed, 1e-9 * mixed);
}

TEST(StudyPlan, RunsAsManySideBySideAsThereAreCores) {
  const int cores = describe_machine().cores;
  EXPECT_EQ(runs_side_by_side(1, 1), 1);
  EXPECT_EQ(runs_side_by_side(100 * cores, 1), cores);
  EXPECT_EQ(runs_side_by_side(2, 100 * cores), 1);
}

}  // namespace
}  // namespace attnres::testing::study_results_test
