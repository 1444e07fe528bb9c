// A grid of runs: trained, stopped, killed, failing, and taken up again.
#include <gmock/gmock.h>

#include "attnres/ops/processor.h"
#include "attnres/parameters/precision.h"
#include "attnres/study/study_folder.h"
#include "attnres/study/study_grid.h"
#include "tests/end_to_end/runs.h"
#include "tests/study/tiny_study.h"

namespace attnres::testing::study_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class Study : public ::testing::Test {
 protected:
  Study() { attnres::write_text(data_, real_text(20000)); }

  std::string arguments(const std::string& out, const std::string& more = "") const {
    return fmt::format("study {} --data {} --out {} {}", quoted(recipe_), quoted(data_),
                       quoted(base_ / out), more);
  }
  Result study(const std::string& out, const std::string& more = "") const {
    return run_program(arguments(out, more));
  }
  StudyPaths paths(const std::string& out) const { return {base_ / out}; }
  // The states of the runs, in their order: "done missing".
  std::string states(const std::string& out) const {
    std::string states;
    const Json study = read_json(paths(out).study_json());
    for (const Json& run : study.at("runs")) {
      states += (states.empty() ? "" : " ") + run.at("state").get<std::string>();
    }
    return states;
  }
  void set_study(const Json& study) const { write_study(recipe_, study); }

  const fs::path base_ = fresh_folder("study");
  const fs::path data_ = base_ / "text.txt";
  const fs::path recipe_ = write_study(base_ / "tiny.json", tiny_study());
};

// Waits until no process has the run any more: one whose study was killed ends a moment later.
void wait_until_free(const RunPaths& run) {
  while (true) {
    try {
      const FolderLock lock(run.folder);
      return;
    } catch (const Error&) {
      Child::nap(1000);
    }
  }
}

// Steps that end at once, and enough of them to be disturbed at.
Json long_study() {
  Json study = tiny_study();
  study["seeds"] = 1;
  study["base"]["train"].update(Json{{"steps", 50}, {"eval_every", 25}, {"checkpoint_every", 10}});
  return study;
}

TEST_F(Study, TrainsTheGridAndThenNothing) {
  const Result first = study("a", "--jobs 2");
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_THAT(first.out, AllOf(HasSubstr("\nblock is "), HasSubstr("4 runs, 4 done")));
  EXPECT_EQ(states("a"), "done done done done");
  EXPECT_TRUE(fs::exists(paths("a").report()));
  EXPECT_THAT(read_file(paths("a").runs_csv()), HasSubstr("block-seed2,block,2,run,done,6,6,"));
  // Each is what `train` makes of its recipe.
  const RunPaths run = paths("a").run("block-seed2");
  const RunPaths alone{base_ / "alone"};
  const int64_t threads = read_json(paths("a").study_json()).at("threads");
  ASSERT_EQ(run_program(fmt::format("train --recipe {} --data {} --out {} --threads {}",
                                    quoted(paths("a").recipe("block-seed2")), quoted(data_),
                                    quoted(alone.folder), threads))
                .exit_code,
            0);
  EXPECT_TRUE(same_results(run, alone));
  EXPECT_FALSE(same_results(run, paths("a").run("block-seed1")));

  const auto before = contents(paths("a").folder);
  const Result second =
      run_program(fmt::format("study {} --out {}", quoted(recipe_), quoted(paths("a").folder)));
  EXPECT_EQ(second.exit_code, 0) << second.err;
  EXPECT_EQ(second.out, first.out);
  EXPECT_TRUE(contents(paths("a").folder) == before);
  EXPECT_THAT(study("a", "--dry-run").out, HasSubstr("FLOPs; nothing is left to train\n"));
}

TEST_F(Study, GoesOnAfterASignal) {
  set_study(long_study());
  const std::string block = "block-seed1", only = "--jobs 2 --only " + block;
  ASSERT_EQ(study("whole", only).exit_code, 0);
  for (const int signal : {SIGKILL, SIGINT}) {
    SCOPED_TRACE(signal);
    const std::string out = fmt::format("signal{}", signal);
    const RunPaths run = paths(out).run(block);
    const Disturbed disturbed = disturb(run, 15, signal, [&] {
      fs::remove_all(paths(out).folder);
      return Child(arguments(out, only));
    });
    EXPECT_EQ(disturbed.exit_code, signal == SIGKILL ? 128 + SIGKILL : 130);
    wait_until_free(run);
    EXPECT_EQ(states(out), signal == SIGKILL ? "missing missing" : "missing unfinished");
    const int64_t saved = read_training_state(run.last()).step;
    EXPECT_GE(saved, 10);  // at most an interval is lost
    EXPECT_LT(saved, 50);
    EXPECT_FALSE(same_results(paths("whole").run(block), run));
    const Result rest = study(out, only);
    EXPECT_EQ(rest.exit_code, 0) << rest.err;
    EXPECT_TRUE(same_results(paths("whole").run(block), run));
  }
}

// Weights that grow a hundredfold a step.
TEST_F(Study, ARunThatDivergesLeavesTheOthers) {
  Json tiny = tiny_study();
  tiny["seeds"] = 1;
  tiny.erase("smoke");
  tiny["axes"] = {
      {"rate",
       {{"wild", {{"train.learning_rate", 10}, {"train.weight_decay", 10}, {"train.steps", 60}}},
        {"tame", {{"train.learning_rate", 0.001}}}}}};
  set_study(tiny);
  const Result result = study("a");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, AllOf(HasSubstr("1 run failed:\n  wild-seed1: step "),
                                HasSubstr("training stopped")));
  EXPECT_THAT(result.out, HasSubstr("2 runs, 1 done, 1 failed"));
  EXPECT_EQ(states("a"), "failed done");
  EXPECT_TRUE(fs::exists(paths("a").report()));
}

// Residual weights, and what begins with them: the same, Block AttnRes, and another mechanism.
Json chained_study() {
  Json study = tiny_study();
  study["seeds"] = 1;
  const Json residual = {{"type", "residual"}};
  const Json block = {
      {"type", "block_attn_res"}, {"block_size", 2}, {"norm_eps", "per_source_count"}};
  study["axes"]["mixing"] = {{"on", {{"from", "first"}, {"model.depth_mixing", residual}}},
                             {"block", {{"from", "on"}, {"model.depth_mixing", block}}},
                             {"first", {{"model.depth_mixing", residual}, {"train.steps", 20}}},
                             {"anew", {{"model.depth_mixing", block}}}};
  return study;
}

// Steps of rate 0 leave the weights as they were, so that losses tell where runs began.
TEST_F(Study, RunsBeginWithTheWeightsOfOthers) {
  Json chained = chained_study();
  for (const char* arm : {"on", "block", "anew"}) {
    chained["axes"]["mixing"][arm]["train.learning_rate"] = 0;
  }
  set_study(chained);
  const Result result = study("a", "--jobs 2 --only 'block-*' anew-seed1");  // with what it needs
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json runs = read_json(paths("a").study_json()).at("runs");
  const auto loss = [&](int run) { return runs.at(run).at("final_val_loss").get<double>(); };
  for (int run = 0; run < 4; ++run) EXPECT_GT(runs.at(run).at("peak_bytes"), 10'000'000);
  EXPECT_DOUBLE_EQ(loss(0), loss(2));
  EXPECT_NEAR(loss(1), loss(2), 1e-5);
  EXPECT_GT(loss(3), loss(2) + 0.1);
  EXPECT_EQ(runs.at(1).at("from"), "on-seed1");
  EXPECT_TRUE(runs.at(2).at("from").is_null());
  const Json origin = read_run_json(paths("a").run("on-seed1")).at("from");
  EXPECT_EQ(origin.at("name"), "first-seed1");
  EXPECT_EQ(origin.at("step"), 20);
  const auto before = contents(paths("a").folder);
  EXPECT_EQ(study("a").exit_code, 0);
  EXPECT_TRUE(contents(paths("a").folder) == before);
}

TEST_F(Study, AChainGoesOnAfterASignal) {
  Json chained = chained_study();
  chained["axes"]["mixing"].erase("anew");
  chained["base"]["train"].update(
      Json{{"steps", 50}, {"eval_every", 25}, {"checkpoint_every", 10}});
  set_study(chained);
  const RunPaths whole = paths("whole").run("block-seed1"), run = paths("cut").run("block-seed1");
  ASSERT_EQ(study("whole").exit_code, 0);
  disturb(run, 15, SIGKILL, [&] {
    fs::remove_all(paths("cut").folder);
    return Child(arguments("cut", ""));
  });
  wait_until_free(run);
  EXPECT_FALSE(same_results(whole, run));
  fs::remove_all(paths("cut").start("block-seed1"));  // it has begun
  ASSERT_EQ(study("cut").exit_code, 0);
  EXPECT_TRUE(same_results(whole, run));
  EXPECT_EQ(states("cut"), "done done done");
}

TEST_F(Study, WhatBeginsWithAFailedRunFails) {
  Json chained = chained_study();
  chained["axes"]["mixing"]["first"].update(
      Json{{"train.learning_rate", 10}, {"train.weight_decay", 10}, {"train.steps", 60}});
  set_study(chained);
  const Result result = study("a");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, AllOf(HasSubstr("3 runs failed"),
                                HasSubstr("on-seed1: begins with the weights of first-seed1, which "
                                          "has failed"),
                                HasSubstr("block-seed1: begins with the weights of on-seed1")));
  EXPECT_EQ(states("a"), "failed failed failed done");
}

// Two rates, of which one diverges.
Json tuned_study() {
  Json study = tiny_study();
  study["seeds"] = 1;
  study["base"]["train"].update(Json{{"weight_decay", 10}, {"eval_every", 60}});
  study["tune"] = {{"key", "train.learning_rate"},
                   {"values", {0.001, 10}},
                   {"axis", "mixing"},
                   {"arm", "residual"},
                   {"set", {{"train.steps", 60}}}};
  return study;
}

TEST_F(Study, WarnsOfTooLittleText) {
  const auto warns = [&](int64_t steps) {
    const Result plan = study("a", fmt::format("--dry-run --set train.steps={}", steps));
    return plan.out.find("4 runs go more than 4 times over the text") != std::string::npos;
  };
  const Json train = recipe_to_json(plan_runs(read_study(recipe_), {}).at(0).recipe).at("train");
  const int64_t tokens = train.at("batch_size").get<int64_t>() * train.at("context").get<int64_t>();
  const int64_t four_passes = 4 * static_cast<int64_t>(fs::file_size(data_)) / tokens;
  EXPECT_FALSE(warns(four_passes));
  EXPECT_TRUE(warns(four_passes + 1));
}

TEST_F(Study, TunesTheRate) {
  set_study(tuned_study());
  const Result plan = study("a", "--dry-run");
  EXPECT_THAT(plan.out, HasSubstr("block-own-seed1        waiting"));
  const Result result = study("a", "--jobs 2");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("6 runs, 4 done, 2 diverged"));
  EXPECT_EQ(states("a"), "done diverged done diverged done done");
  const Json json = read_json(paths("a").study_json());
  EXPECT_EQ(json.at("axes"), Json({"mixing", "rate"}));
  EXPECT_EQ(json.at("tuning").at("chosen").at(1),
            Json({{"arms", {{"mixing", "block"}}}, {"common", 0.001}, {"own", 0.001}}));
  EXPECT_EQ(json.at("runs").at(5).at("name"), "block-common-seed1");
  EXPECT_EQ(read_run_json(paths("a").run("block-common-seed1"))
                .at("recipe")
                .at("train")
                .at("learning_rate"),
            0.001);
  const auto before = contents(paths("a").folder);
  EXPECT_EQ(study("a").exit_code, 0);
  EXPECT_TRUE(contents(paths("a").folder) == before);
}

// As if a trial that was run again had ended elsewhere.
TEST_F(Study, RefusesAnotherRateThanRunsBeganWith) {
  Json tuned = tuned_study();
  tuned["tune"]["values"] = {0.001, 0.002};
  tuned["tune"]["set"] = {{"train.steps", 4}};
  tuned["tune"]["own"] = false;
  set_study(tuned);
  ASSERT_EQ(study("a").exit_code, 0);
  const fs::path last = paths("a").run("trial-residual-0.001").last();
  const Recipe recipe = load_recipe(paths("a").recipe("trial-residual-0.001"), {});
  Training trial = load_checkpoint(last, recipe.model, ByteTokenizer().vocab_size(), recipe.train);
  const double other =
      read_training_state(paths("a").run("trial-residual-0.002").last()).validation_loss;
  const bool first_won = trial.state.validation_loss < other;
  trial.state.validation_loss = other + (first_won ? 1 : -1);
  save_checkpoint(last, trial, ByteTokenizer(), recipe.train.context);
  const Result result = study("a");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, AllOf(HasSubstr("runs of this study have begun with another recipe"),
                                HasSubstr(first_won ? "train.learning_rate: 0.001 -> 0.002"
                                                    : "train.learning_rate: 0.002 -> 0.001")));
}

TEST_F(Study, TrialsGoOnAfterASignal) {
  Json tuned = tuned_study();
  tuned["base"]["train"].update(Json{{"weight_decay", 0.1}, {"checkpoint_every", 10}});
  tuned["tune"]["values"] = {0.001, 0.004};
  tuned["tune"]["set"]["train.steps"] = 40;
  tuned["tune"]["own"] = false;
  set_study(tuned);
  ASSERT_EQ(study("whole").exit_code, 0);
  const RunPaths trial = paths("cut").run("trial-residual-0.001");
  disturb(trial, 15, SIGKILL, [&] {
    fs::remove_all(paths("cut").folder);
    return Child(arguments("cut"));
  });
  wait_until_free(trial);
  ASSERT_EQ(study("cut").exit_code, 0);
  EXPECT_EQ(states("cut"), states("whole"));
  for (const char* run : {"trial-residual-0.001", "residual-seed1", "block-seed1"}) {
    EXPECT_TRUE(same_results(paths("whole").run(run), paths("cut").run(run))) << run;
  }
}

TEST_F(Study, ValidatesOnTextOfItsOwn) {
  const fs::path text = base_ / "validation.txt";
  attnres::write_text(text, real_text(30000).substr(20000));
  const std::string more = "--only block-seed1 --validation " + quoted(text);
  ASSERT_EQ(study("a", more).exit_code, 0);
  EXPECT_EQ(read_run_json(paths("a").run("block-seed1")).at("data").at("split"), "given");
  EXPECT_EQ(read_json(paths("a").study_json()).at("validation"), Json({text.string()}));
  EXPECT_EQ(study("a", "--only block-seed2").exit_code, 0);  // it remembers
  EXPECT_EQ(read_run_json(paths("a").run("block-seed2")).at("data").at("split"), "given");
  const Result other = study("a", "--validation " + quoted(data_));
  EXPECT_EQ(other.exit_code, 1);
  EXPECT_THAT(other.err, HasSubstr("leave --validation out"));
}

TEST_F(Study, AFullDiskLosesNothing) {
  const Result full = run_shell("ulimit -f 100; attnres " + arguments("a", "--only block-seed1"));
  EXPECT_EQ(full.exit_code, 1);
  EXPECT_THAT(full.err, AllOf(HasSubstr("block-seed1: failed"), HasSubstr("cannot write")));
  EXPECT_EQ(states("a"), "missing failed missing missing");
  EXPECT_EQ(study("a", "--only block-seed1").exit_code, 0);
  EXPECT_EQ(states("a"), "missing done missing missing");
}

TEST_F(Study, DryRunWritesNothing) {
  const Result plan = study("a", "--dry-run --only 'block-*'");
  EXPECT_EQ(plan.exit_code, 0) << plan.err;
  EXPECT_THAT(plan.out, AllOf(HasSubstr("block-seed2"), HasSubstr("0/6"), HasSubstr("2 runs: 1.5K"),
                              Not(HasSubstr("residual"))));
  EXPECT_FALSE(fs::exists(paths("a").folder));
  // Out of time before a run could begin.
  const Result stopped = study("a", "--stop-after 0.0001s");
  EXPECT_EQ(stopped.exit_code, 0);
  EXPECT_THAT(stopped.err, HasSubstr("The same command goes on"));
  EXPECT_EQ(states("a"), "missing missing missing missing");
}

// The smallest of each study that comes with the program: its first run and its last, in the size
// of --smoke, with the trials and the beginnings that they need, and the page.
TEST_F(Study, ThoseOfTheProgramRunFromEndToEnd) {
  int studies = 0;
  for (const auto& entry : fs::directory_iterator(ATTNRES_SOURCE_DIR "/recipes/studies")) {
    SCOPED_TRACE(entry.path());
    std::vector<std::string> names;
    for (const StudyRun& run : plan_runs(read_study(entry.path()), {.smoke = true})) {
      const bool computes =
          processor().bfloat16 || run.recipe.train.precision != kBfloat16Precision;
      if (computes && !run.is_trial && !run.name.ends_with("-own-seed1")) names.push_back(run.name);
    }
    const std::string out = entry.path().stem();
    const Result result = run_program(fmt::format(
        "study {} --smoke --jobs 2 --data {} --out {} --only {} {}", quoted(entry.path()),
        quoted(data_), quoted(base_ / out), names.front(), names.back()));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const Json study = read_json(paths(out).study_json());
    for (const Json& run : study.at("runs")) {
      const std::string name = run.at("name");
      if (name != names.front() && name != names.back()) continue;
      EXPECT_EQ(run.at("state"), "done") << name;
      EXPECT_GT(run.at("final_val_loss").get<double>(), 0) << name;
    }
    const std::string page = read_file(paths(out).report());
    EXPECT_THAT(page, AllOf(HasSubstr("<svg"),
                            HasSubstr(study.at("claim").get<std::string>().substr(0, 20))));
    ++studies;
  }
  EXPECT_EQ(studies, 15);
}

TEST_F(Study, RefusesWhatDoesNotBelongTogether) {
  ASSERT_EQ(study("a", "--only block-seed1").exit_code, 0);
  const auto before = contents(paths("a").folder);
  const auto expect_refused = [&](const Result& result, int exit_code, const std::string& why) {
    EXPECT_EQ(result.exit_code, exit_code);
    EXPECT_THAT(result.err, HasSubstr(why));
  };
  expect_refused(study("a", "--set train.clip=0.5"), 1, "train.clip: 1.0 -> 0.5");
  expect_refused(study("a", "--set train.clap=0.5"), 2, "unknown key train.clap");
  expect_refused(study("a", "--only nothing"), 2, "--only nothing");
  expect_refused(study("a", "--stop-after soon"), 2, "2h, 90m or 45s");
  expect_refused(study("a", "--stop-after 2"), 2, "with its unit, such as 2h, 2m or 2s");
  expect_refused(study("a", "--data " + quoted(recipe_)), 1, "this study began with the text");
  expect_refused(run_program("study nowhere"), 2, "attnres study --list");
  expect_refused(run_program("study block_size"), 2, "did you mean block-size?");
  expect_refused(run_program("study " + quoted(paths("a").folder)), 2, "study that has begun");
  expect_refused(run_program("study"), 2, "--list");
  {
    const FolderLock lock(paths("a").folder);
    expect_refused(study("a"), 1, "in use by another attnres process");
  }
  auto after = contents(paths("a").folder);
  EXPECT_TRUE(after == before);
  const std::string list = run_program("study --list").out;
  for (const char* name : {"ablation", "block-size", "overhead", "scaling-law"}) {
    EXPECT_THAT(list, HasSubstr(name));
  }
}

}  // namespace
}  // namespace attnres::testing::study_test
