// Whatever ends a run, going on with it leaves what it would have left undisturbed.
#include <gmock/gmock.h>

#include "attnres/ops/matmul/provider.h"
#include "attnres/parameters/precision.h"
#include "attnres/support/random.h"
#include "tests/end_to_end/runs.h"
#include "tests/model/small_models.h"

namespace attnres::testing::resume_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

void expect_resumes(const Workshop& workshop, const std::string& name) {
  const Result result = workshop.resume(name);
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

// Every step once and in order, and what is logged now and then at its steps.
void expect_complete_logs(const RunPaths& run) {
  const std::vector<Json> metrics = read_lines(run.metrics());
  ASSERT_EQ(metrics.size(), 40u);
  for (size_t i = 0; i < metrics.size(); ++i) EXPECT_EQ(metrics[i]["step"], i + 1);
  std::vector<std::string> probed;
  for (const Json& line : read_lines(run.probes())) {
    probed.push_back(fmt::format("{:03} {} {}", line["step"].get<int>(),
                                 line["name"].get<std::string>(), line["site"].get<int>()));
  }
  EXPECT_EQ(std::set<std::string>(probed.begin(), probed.end()).size(), probed.size());
  EXPECT_TRUE(std::is_sorted(probed.begin(), probed.end(), [](const auto& a, const auto& b) {
    return a.substr(0, 3) < b.substr(0, 3);
  }));
  std::vector<int> sampled;
  for (const Json& line : read_lines(run.samples())) sampled.push_back(line["step"]);
  EXPECT_EQ(sampled, (std::vector<int>{20, 40}));
}

// `forgotten`: what the names of the moments hold that the forgetful run loses.
void expect_exact_after_a_kill(const Json& recipe, const std::string& forgotten) {
  const Workshop workshop(recipe);
  workshop.train_here("whole");
  const RunPaths whole{workshop.folder("whole")}, killed{workshop.folder("killed")},
      forgetful{workshop.folder("forgetful")};
  expect_complete_logs(whole);
  const Disturbed result = disturb(killed, 21, SIGKILL, [&] { return Child(workshop, "killed"); });
  EXPECT_EQ(result.exit_code, 128 + SIGKILL);
  EXPECT_GE(steps_logged(killed), 21);
  EXPECT_LT(steps_logged(killed), 40);
  fs::copy(killed.folder, forgetful.folder, fs::copy_options::recursive);

  workshop.train_here("killed", /*resume=*/true);
  EXPECT_TRUE(same_results(killed, whole));
  expect_complete_logs(killed);

  zero_moments(forgetful, forgotten);
  workshop.train_here("forgetful", /*resume=*/true);
  EXPECT_FALSE(same_results(forgetful, whole));
}

TEST(ResumeOfText, RemembersWhereItLiesNow) {
  const Workshop workshop(block_recipe());
  const fs::path own = workshop.folder("own.txt"), moved = workshop.folder("moved.txt"),
                 own_moved = workshop.folder("own_moved.txt");
  write_text(own, real_text(50000).substr(40000));
  const RunPaths run = workshop.trained("run", "--validation " + quoted(own));
  fs::rename(workshop.data(), moved);
  fs::rename(own, own_moved);
  const auto resume = [&](int steps, const std::string& more = "") {
    return workshop.resume("run", fmt::format("--set train.steps={} {}", steps, more));
  };
  EXPECT_THAT(resume(41).err, AllOf(HasSubstr(workshop.data().string()),
                                    HasSubstr("where it lies now with --data")));
  const Result told = resume(42, "--data " + quoted(moved) + " --validation " + quoted(own_moved));
  ASSERT_EQ(told.exit_code, 0) << told.err;
  EXPECT_THAT(told.err, HasSubstr("data.paths: [\"" + moved.string()));
  const Json data = read_run_json(run)["data"];
  EXPECT_EQ(data["paths"], Json({moved.string()}));
  EXPECT_EQ(data["validation_paths"], Json({own_moved.string()}));
  const Result later = resume(44);
  EXPECT_EQ(later.exit_code, 0) << later.err;
  EXPECT_THAT(later.err, Not(HasSubstr("data.paths")));
  EXPECT_EQ(run_program("eval --run " + quoted(run.folder)).exit_code, 0);
}

class Resume : public ::testing::TestWithParam<Mixing> {};

TEST_P(Resume, AfterAKillIsExact) {
  expect_exact_after_a_kill(tiny_recipe(GetParam().json), "moment");
}

INSTANTIATE_TEST_SUITE_P(Mechanisms, Resume, ::testing::ValuesIn(every_mechanism()),
                         [](const auto& info) { return info.param.name; });

TEST(ResumeAfterAKill, OfMuonIsExact) {
  Json recipe = block_recipe();
  recipe["train"]["optimizer"] = "muon";
  expect_exact_after_a_kill(recipe, ".momentum");
}

TEST(ResumeAfterAKill, OfAModelWithExpertsIsExact) {
  expect_exact_after_a_kill(kimi_recipe(), ".momentum");
}

TEST(ResumeAfterAKill, InBfloat16IsExactOrRefused) {
  Json recipe = block_recipe();
  recipe["train"]["precision"] = kBfloat16Precision;
  if (processor().bfloat16) return expect_exact_after_a_kill(recipe, "moment");
  const Workshop workshop(recipe);
  try {
    workshop.train_here("refused");
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("train.precision: this processor has no products"));
  }
  EXPECT_FALSE(fs::exists(workshop.folder("refused")));
}

TEST(ResumeAfterAKill, OfTheProgramIsExact) {
  const Workshop workshop(block_recipe());
  const RunPaths whole = workshop.trained("whole"), killed{workshop.folder("killed")};
  EXPECT_EQ(disturb(workshop, "killed", 21, SIGKILL).exit_code, 128 + SIGKILL);
  expect_resumes(workshop, "killed");
  EXPECT_TRUE(same_results(killed, whole));
}

TEST(ResumeAfterAKill, BeforeTheFirstCheckpoint) {
  const Workshop workshop(block_recipe());
  const RunPaths whole = workshop.trained("whole");
  disturb(workshop, "killed", 3, SIGKILL);
  const RunPaths killed{workshop.folder("killed")};
  EXPECT_FALSE(fs::exists(killed.last()));
  expect_resumes(workshop, "killed");
  EXPECT_TRUE(same_results(killed, whole));
}

// Most of the time of a run that saves every step goes into saving.
TEST(ResumeAfterAKill, AtAnyMoment) {
  Json recipe = block_recipe();
  recipe["train"]["checkpoint_every"] = 1;
  recipe["train"]["eval_every"] = 2;
  const Workshop workshop(recipe);
  workshop.train_here("whole");
  const RunPaths whole{workshop.folder("whole")}, killed{workshop.folder("killed")};
  const RandomStream random(1, "moments");
  int kills = 0;
  for (int64_t steps = 1; steps < 36; steps += 3, ++kills) {
    Child child(workshop, "killed", /*resume=*/kills > 0);
    if (!child.wait_for_steps(killed, steps)) break;
    Child::nap(static_cast<int64_t>(random.below(8000, steps)));
    child.send(SIGKILL);
    EXPECT_EQ(child.wait(), 128 + SIGKILL);
  }
  EXPECT_GE(kills, 5);
  workshop.train_here("killed", /*resume=*/true);
  EXPECT_TRUE(same_results(killed, whole));
}

TEST(ResumeAfterAKill, BetweenTheRenamesOfACheckpoint) {
  const Workshop workshop(block_recipe());
  const RunPaths whole = workshop.trained("whole");
  disturb(workshop, "killed", 21, SIGKILL);
  const RunPaths killed{workshop.folder("killed")};
  fs::copy(killed.last(), killed.checkpoints() / "last.old", fs::copy_options::recursive);
  write_text(killed.checkpoints() / "last.part/model.safetensors", "half of");
  fs::rename(killed.last(), killed.checkpoints() / "last.new");
  expect_resumes(workshop, "killed");
  EXPECT_TRUE(same_results(killed, whole));
  EXPECT_EQ(contents(killed.checkpoints()).size(), contents(whole.checkpoints()).size());
}

class ResumeAfterASignal : public ::testing::TestWithParam<int> {};

TEST_P(ResumeAfterASignal, IsExact) {
  const Workshop workshop(block_recipe());
  const RunPaths whole = workshop.trained("whole");
  const Disturbed result = disturb(workshop, "stopped", 5, GetParam());
  EXPECT_EQ(result.exit_code, 130);
  const RunPaths run{workshop.folder("stopped")};
  const int64_t steps = steps_logged(run);
  EXPECT_THAT(result.errors, HasSubstr(fmt::format("step {} of 40 is saved", steps)));

  // What it says to type works as it stands.
  const size_t command = result.errors.find("attnres train --resume");
  ASSERT_NE(command, std::string::npos) << result.errors;
  const size_t end = result.errors.find('\n', command);
  const Result resumed = run_shell(result.errors.substr(command, end - command));
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_TRUE(same_results(run, whole));
  expect_complete_logs(run);
}

INSTANTIATE_TEST_SUITE_P(Signals, ResumeAfterASignal,
                         ::testing::Values(SIGINT, SIGTERM, SIGHUP, SIGPIPE),
                         [](const auto& info) -> std::string {
                           if (info.param == SIGHUP) return "hangup";
                           if (info.param == SIGPIPE) return "lost_reader";
                           return info.param == SIGINT ? "interrupt" : "terminate";
                         });

TEST(ResumeFinished, SaysSoAndChangesNothing) {
  const Workshop workshop(block_recipe());
  const RunPaths run = workshop.trained("run");
  const auto before = contents(run.folder);
  const Result first = run_program("eval --model " + quoted(run.folder) + " --json --data " +
                                   quoted(workshop.data()));
  const Result again = workshop.resume("run");
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_THAT(again.out, HasSubstr("already finished its 40 steps"));
  EXPECT_EQ(contents(run.folder), before);
  EXPECT_EQ(first.exit_code, 0) << first.err;
}

TEST(ResumeFinished, ReportsTheLastLossNotTheBest) {
  Json recipe = block_recipe();
  // The learning rate grows to the end, and with it the weights, the logits and the loss.
  recipe["train"].update({{"learning_rate", 10.0}, {"warmup", recipe["train"]["steps"]}});
  const Workshop workshop(recipe);
  const Result first = workshop.train("run", "--json");
  ASSERT_EQ(first.exit_code, 0) << first.err;
  const Json summary = Json::parse(first.out);
  EXPECT_NE(summary["val_loss"], summary["best_val_loss"]);
  Json again = Json::parse(workshop.resume("run", "--json").out);
  again["peak_bytes"] = summary["peak_bytes"];
  EXPECT_EQ(again, summary);
}

}  // namespace
}  // namespace attnres::testing::resume_test
