#include "attnres/report/comparison.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

namespace attnres::comparison_test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

// 100 steps, validated at the last ones.
RunData run(const std::string& label, const std::string& mechanism, std::vector<double> val_losses,
            double speed = 1000) {
  RunData out;
  out.label = label;
  out.mechanism = mechanism;
  out.residual = mechanism == "residual";
  out.record = {
      {"recipe",
       {{"name", label},
        {"model", {{"width", 64}, {"depth_mixing", {{"type", mechanism}}}}},
        {"train",
         {{"steps", 100},
          {"warmup", 10},
          {"learning_rate", 0.003},
          {"seed", 1},
          {"eval_every", 1},
          {"eval_tokens", 9},
          {"context", 8}}},
        {"tokenizer", {{"kind", "bytes"}}}}},
      {"parameters", 1000},
      {"data",
       {{"hash", "h"}, {"tokens_hash", "t"}, {"train_tokens", 90}, {"validation_tokens", 10}}},
      {"machine", {{"threads", 2}}},
      {"build", {{"version", "1"}}}};
  for (int step = 1; step <= 100; ++step) {
    Metric& metric = out.metrics.emplace_back();
    metric.step = step;
    metric.tokens = 100.0 * step;
    metric.seconds = step;
    metric.tokens_per_second = speed;
    const int left = 100 - step;
    if (left < int(val_losses.size())) {
      metric.val_loss = val_losses[val_losses.size() - 1 - size_t(left)];
    }
  }
  return out;
}

RunData with_seed(RunData run, int64_t seed) {
  run.record["recipe"]["train"]["seed"] = seed;
  run.label += " " + std::to_string(seed);
  return run;
}

TEST(Compare, TakesTheFinalValidationLoss) {
  const RunSummary summary = compare({run("a", "residual", {3, 1.5, 2})}).runs.at(0);
  EXPECT_EQ(summary.final_val_loss, 2);
  EXPECT_EQ(summary.final_val_step, 100);
  EXPECT_EQ(summary.best_val_loss, 1.5);
  EXPECT_EQ(summary.best_val_step, 99);
  EXPECT_EQ(summary.seed, 1);
  EXPECT_EQ(summary.parameters, 1000);
  EXPECT_EQ(summary.seconds, 100);
  EXPECT_EQ(summary.tokens, 10000);
}

// The lowest over the steps would name the other one.
TEST(Compare, APassingDipDoesNotWin) {
  const Comparison c =
      compare({run("dips", "residual", {3, 1, 2}), run("ends", "attn_res", {3, 2, 1.9})});
  EXPECT_THAT(c.verdict, StartsWith("ends has the lowest final validation loss, 1.9000"));
}

TEST(Compare, SaysHowFarTheBestIsBelowResidual) {
  const Comparison c =
      compare({run("base", "residual", {3, 2}, 1000), run("full", "attn_res", {3, 1.75}, 900),
               run("block", "block_attn_res", {3, 1.8}, 950)});
  EXPECT_EQ(c.best, 1);
  EXPECT_EQ(c.residual, 0);
  EXPECT_EQ(
      c.verdict,
      "full has the lowest final validation loss, 1.7500, 0.2500 below the residual run base "
      "(2.0000), at 0.90 ± 0.00 times its speed. One seed cannot tell: repeat with others before "
      "believing it.");
  EXPECT_NEAR(c.runs[2].loss_difference, -0.2, 1e-12);
  EXPECT_NEAR(c.runs[2].speed_ratio, 0.95, 1e-12);
  EXPECT_THAT(c.incomparable, IsEmpty());
  EXPECT_THAT(c.cautions, IsEmpty());
}

TEST(Compare, SaysWhenResidualLeads) {
  const Comparison c =
      compare({run("full", "attn_res", {2.5}, 500), run("base", "residual", {2}, 1000)});
  EXPECT_THAT(c.verdict,
              StartsWith("base has the lowest final validation loss, 2.0000, 0.5000 below the next "
                         "best, full (2.5000), at 2.00 ± 0.00 times its speed."));
}

// As a study names its runs, whether one arm has the mechanism or several.
TEST(Compare, NamesArmsWithoutTheirSeeds) {
  std::vector<RunData> runs;
  const auto add = [&](const std::string& name, const std::string& mechanism, int64_t width) {
    for (const int64_t seed : {1, 2}) {
      RunData& added = runs.emplace_back(run(name + fmt::format("-seed{}", seed), mechanism, {2}));
      added.record["recipe"]["train"]["seed"] = seed;
      added.record["recipe"]["model"]["depth_mixing"]["block_size"] = width;
    }
  };
  add("plain", "residual", 0);
  add("block1", "block_attn_res", 1);
  add("block4", "block_attn_res", 4);
  std::vector<std::string> labels;
  for (const Arm& arm : compare(runs).arms) labels.push_back(arm.label);
  EXPECT_THAT(labels, ElementsAre("plain", "block1", "block4"));
  runs[3].label = "another";
  EXPECT_EQ(compare(runs).arms[1].label, "block1-seed1");
}

TEST(Compare, ManagesWithLess) {
  EXPECT_EQ(
      compare({run("a", "attn_res", {2})}).verdict,
      "a reached a validation loss of 2.0000 at step 100, training on 1,000 tokens a second.");
  EXPECT_EQ(compare({run("a", "attn_res", {})}).verdict,
            "a has not measured a validation loss yet.");
  EXPECT_EQ(compare({run("a", "attn_res", {}), run("b", "residual", {NAN})}).verdict,
            "No run has measured a validation loss yet.");
  EXPECT_EQ(compare({run("a", "attn_res", {2}), run("b", "residual", {})}).verdict,
            "a reached a validation loss of 2.0000; no other run has measured one.");
  EXPECT_THAT(compare({run("a", "attn_res", {2}), run("b", "residual", {2.00001})}).verdict,
              HasSubstr("level with the residual run b"));
  EXPECT_TRUE(std::isnan(compare({run("a", "attn_res", {2})}).runs[0].loss_difference));
  EXPECT_EQ(compare({RunData(), RunData()}).arms.size(), 2) << "nothing says that they are alike";
}

// What was changed in one of two runs is the reason, in the verdict and in the cautions.
TEST(Compare, TheVerdictSaysWhatKeepsRunsFromComparing) {
  const RunData a = run("a", "residual", {2}), b = run("b", "attn_res", {1.9});
  ASSERT_THAT(compare({a, b}).incomparable, IsEmpty());
  const auto expect = [&](const std::function<void(RunData&)>& change, const std::string& reason) {
    RunData other = b;
    change(other);
    const Comparison c = compare({a, other});
    EXPECT_EQ(c.verdict, "These runs do not compare: " + reason +
                             ". Final validation losses: a 2.0000, b 1.9000.");
    EXPECT_THAT(c.incomparable, ElementsAre(reason));
    EXPECT_FALSE(c.best.has_value()) << reason;
    EXPECT_TRUE(std::isnan(c.runs[1].loss_difference)) << reason;
  };
  const auto set = [](const char* pointer, const Json& value) {
    return [=](RunData& r) { r.record[Json::json_pointer(pointer)] = value; };
  };
  expect(set("/data/hash", "other"), "different data");
  expect(set("/data/tokens_hash", "u"), "other parts of the data held out to validate on");
  expect(set("/data/validation_tokens", 20), "other parts of the data held out to validate on");
  expect(set("/recipe/tokenizer/kind", "sentencepiece"),
         "different tokenizers, so that a token is not the same");
  expect(set("/from", {{"name", "teacher"}, {"step", 5}, {"checksum", "c"}}),
         "b began with the weights of teacher (step 5)");
  expect(set("/recipe/train/warmup", 50),
         "besides the depth mixing, different train.warmup (10, 50)");
  expect(set("/recipe/model/width", 128),
         "besides the depth mixing, different model.width (64, 128)");
  expect(set("/recipe/train/eval_tokens", 5), "validated with different train.eval_tokens (9, 5)");
  expect(set("/changes", {{{"step", 40}, {"train.steps", {50, 100}}}}),
         "b was made longer (50 to 100 steps at step 40)");
  expect([](RunData& r) { r.metrics.resize(50), r.metrics.back().val_loss = 1.9; },
         "trained on different amounts, 5.0K to 10.0K tokens");
}

TEST(Compare, WhatDecidesNothingIsNoReason) {
  const RunData a = run("a", "residual", {2});
  RunData b = run("b", "attn_res", {1.9});
  b.record["recipe"]["train"]["eval_every"] = 7;
  b.record["changes"] = {{{"step", 40}, {"train.eval_every", {1, 7}}}};
  b.record["recipe"]["model"]["depth_mixing"]["key_norm"] = false;
  b.record["recipe"]["train"]["new_in_a_later_version"] = 1;
  EXPECT_THAT(compare({a, b}).incomparable, IsEmpty());
}

// The same trained weights for both: what came before is the same.
TEST(Compare, RunsBegunWithTheSameWeightsCompare) {
  RunData a = run("a", "residual", {2}), b = run("b", "residual", {1.9});
  a.record["from"] = b.record["from"] = {{"name", "teacher"}, {"checksum", "c"}};
  b.record["recipe"]["train"]["learning_rate"] = 0.001;
  EXPECT_THAT(compare({a, b}).incomparable, IsEmpty());
  b.record["from"]["checksum"] = "d";
  EXPECT_THAT(compare({a, b}).incomparable, Not(IsEmpty()));
  EXPECT_THAT(compare({a}).verdict, EndsWith(", begun with the weights of teacher."));
}

// A sweep with one depth mixing is about what it sweeps.
TEST(Compare, SaysWhatIsComparedWhereTheDepthMixingIsTheSame) {
  const RunData a = run("a", "residual", {2});
  RunData b = run("b", "residual", {1.9});
  b.record["recipe"]["train"]["learning_rate"] = 0.001;
  const Comparison c = compare({a, b});
  EXPECT_THAT(c.incomparable, IsEmpty());
  EXPECT_THAT(c.verdict, HasSubstr("What differs: train.learning_rate (0.003, 0.001)."));
  b.record["data"]["hash"] = "other";
  EXPECT_THAT(compare({a, b}).verdict,
              StartsWith("These runs do not compare: different data. What differs: "
                         "train.learning_rate (0.003, 0.001). Final validation losses: "));
}

// The lowest over the seeds would name the arm with more of them.
TEST(Compare, SeedsAreComparedInPairs) {
  const RunData residual = run("base", "residual", {2}), block = run("block", "attn_res", {1.95});
  std::vector<RunData> runs = {with_seed(residual, 1), with_seed(block, 1)};
  for (const auto& [seed, loss] : {std::pair{2, 2.1}, {3, 1.8}}) {
    runs.push_back(with_seed(run("base", "residual", {loss}), seed));
  }
  runs.push_back(with_seed(run("block", "attn_res", {2.0}), 2));
  const Comparison c = compare(runs);
  ASSERT_EQ(c.arms.size(), 2);
  EXPECT_EQ(c.arms[0].runs, (std::vector<size_t>{0, 2, 3}));
  // Seeds 1 and 2 alone: 1.975 against 2.05; over all seeds residual's mean is 1.9667.
  EXPECT_EQ(c.best, 1);
  EXPECT_THAT(c.verdict, StartsWith("attn_res has the lowest final validation loss, 1.9750 in the "
                                    "mean of 2 seeds, 0.0750 below the residual runs (2.0500; "
                                    "lower with 2 of them), at 1.00"));
  EXPECT_THAT(c.verdict, Not(HasSubstr("One seed")));
  EXPECT_NEAR(c.runs[4].loss_difference, 2.0 - 2.1, 1e-12) << "against the same seed";
}

// One run for each seed 1, 2, ...
std::vector<RunData> seeds(const std::string& mechanism, const std::vector<double>& losses) {
  std::vector<RunData> runs;
  for (double loss : losses) {
    runs.push_back(with_seed(run(mechanism, mechanism, {loss}), int64_t(runs.size()) + 1));
  }
  return runs;
}

Comparison compare_all(const std::vector<std::vector<RunData>>& arms) {
  std::vector<RunData> runs;
  for (const std::vector<RunData>& arm : arms) runs.insert(runs.end(), arm.begin(), arm.end());
  return compare(runs);
}

// The losses of records/block-attn-res-against-residual.md, on Shakespeare: three pairs, all lower,
// do not yet tell.
TEST(Compare, SaysThatRecordedRunsWithinNoiseAreNotDistinguishable) {
  const Comparison c = compare_all({seeds("residual", {1.7834, 1.7850, 1.8027}),
                                    seeds("block_attn_res", {1.7712, 1.7672, 1.7670})});
  EXPECT_THAT(c.verdict,
              HasSubstr("Over 3 seeds block_attn_res is not distinguishable from residual: it "
                        "differs by −0.0219 (95 % interval −0.0524 to +0.0086, p-value 0.091). "
                        "About 50 seeds would tell a difference of 0.005."));
  EXPECT_EQ(c.baseline, 0);
  const ArmDifference& difference = c.arms.at(1).difference;
  EXPECT_EQ(difference.pairs, 3);
  EXPECT_NEAR(difference.mean, -0.0219, 1e-12);
  const double t = difference.mean / (difference.test->deviation / std::sqrt(3));
  EXPECT_NEAR(t, -3.0903, 2e-3);
  // With 2 degrees of freedom P(|T| > t) = 1 - t / sqrt(2 + t^2).
  EXPECT_NEAR(difference.p_value, 1 + t / std::sqrt(2 + t * t), 1e-12);
  EXPECT_NEAR(c.arms[0].loss_deviation(), 0.01071, 1e-5);
}

// Seeds differ by 0.1 and more, the arms by 0.01 with each of them: paired they are told apart.
// The same losses with their seeds mixed up, so that nothing is shared, are not.
TEST(Compare, PairsTellWhatMeansDoNot) {
  const std::vector<RunData> residual = seeds("residual", {2.0, 2.1, 2.3, 1.8});
  const Comparison c = compare_all({residual, seeds("attn_res", {1.9901, 2.0899, 2.2898, 1.7902})});
  EXPECT_EQ(c.arms.at(1).difference.verdict, "better");
  EXPECT_THAT(c.verdict, HasSubstr("Over 4 seeds attn_res is better than residual: it differs by "
                                   "−0.0100 (95 % interval −0.0103 to −0.0097, p-value < 0.001). "
                                   "About 2 seeds would tell a difference of 0.005."));
  const Comparison mixed =
      compare_all({residual, seeds("attn_res", {2.2898, 1.9901, 1.7902, 2.0899})});
  EXPECT_NEAR(mixed.arms.at(1).mean_loss(), c.arms[1].mean_loss(), 1e-12);
  EXPECT_EQ(mixed.arms[1].difference.verdict, "not distinguishable");
}

TEST(Compare, ABaselineThatLeadsMakesTheOtherWorse) {
  const Comparison c = compare_all(
      {seeds("attn_res", {2.0101, 2.1099, 2.3102}), seeds("residual", {2.0, 2.1, 2.3})});
  EXPECT_EQ(c.baseline, 1);
  EXPECT_EQ(c.arms.at(0).difference.verdict, "worse");
  EXPECT_EQ(c.arms[1].difference.verdict, "baseline");
  EXPECT_THAT(c.verdict, AllOf(StartsWith("residual has the lowest final validation loss"),
                               HasSubstr("attn_res is worse than residual")));
}

// What one arm alone would show is not enough among four.
TEST(Compare, ManyArmsAreCorrectedFor) {
  const std::vector<RunData> residual = seeds("residual", {2.0, 2.1, 2.3}),
                             ahead = seeds("attn_res", {1.99, 2.087, 2.284});
  const Comparison alone = compare_all({residual, ahead});
  EXPECT_EQ(alone.arms.at(1).difference.verdict, "better");
  const Comparison among =
      compare_all({residual, ahead, seeds("dense_former", {2.1, 2.0, 2.31}),
                   seeds("mhc", {1.9, 2.2, 2.4}), seeds("block_attn_res", {2.01, 2.2, 2.2})});
  const ArmDifference& difference = among.arms.at(1).difference;
  EXPECT_NEAR(difference.test->p_value, alone.arms[1].difference.p_value, 1e-12);
  EXPECT_NEAR(difference.p_value, 4 * alone.arms[1].difference.p_value, 1e-12);
  EXPECT_EQ(difference.verdict, "not distinguishable");
  EXPECT_THAT(among.verdict, HasSubstr("corrected for 4 arms"));
}

TEST(Compare, WithoutAResidualArmTheFirstIsTheBaseline) {
  const Comparison c = compare_all({seeds("block_attn_res", {2.0, 2.1}), seeds("mhc", {2.2, 2.0}),
                                    seeds("attn_res", {1.9, 1.8})});
  EXPECT_FALSE(c.residual.has_value());
  EXPECT_EQ(c.baseline, 0);
  EXPECT_THAT(c.verdict, HasSubstr("below the baseline block_attn_res"));
}

TEST(Compare, OneSeedTellsNothing) {
  const Comparison c = compare_all({seeds("residual", {2.0, 2.1}),
                                    seeds("attn_res", {1.9}),
                                    {with_seed(run("mhc", "mhc", {1.95}), 7)},
                                    seeds("dense_former", {NAN})});
  EXPECT_EQ(c.arms.at(1).difference.verdict, "one seed cannot tell");
  EXPECT_FALSE(c.arms[1].difference.test.has_value());
  EXPECT_NEAR(c.arms[1].difference.mean, -0.1, 1e-12);
  EXPECT_EQ(c.arms.at(2).difference.verdict, "no seed in common");
  EXPECT_EQ(c.arms.at(3).difference.verdict, "no loss measured");
  EXPECT_THAT(c.verdict, Not(HasSubstr("would tell")));
}

TEST(Compare, RunsThatDoNotCompareAreNotTested) {
  std::vector<RunData> other = seeds("attn_res", {1.9, 1.8, 1.9});
  for (RunData& of_other : other) of_other.record["data"]["hash"] = "other";
  const Comparison c = compare_all({seeds("residual", {2.0, 2.1, 2.2}), other});
  EXPECT_FALSE(c.baseline.has_value());
  EXPECT_FALSE(c.arms.at(1).difference.test.has_value());
}

TEST(Compare, SaysWhenSeedsDoNotMatch) {
  const RunData a = with_seed(run("a", "residual", {2}), 1);
  EXPECT_THAT(
      compare({a, with_seed(run("b", "attn_res", {1.9}), 2)}).verdict,
      EndsWith(
          "One seed each, and not the same, cannot tell: repeat with others before believing it."));
  EXPECT_THAT(
      compare(
          {a, with_seed(run("b", "attn_res", {1.9}), 2), with_seed(run("b", "attn_res", {1.9}), 3)})
          .verdict,
      EndsWith("They have no seed in common: repeat with equal seeds before believing it."));
  EXPECT_THAT(compare({a, with_seed(run("b", "attn_res", {1.9}), 1),
                       with_seed(run("b", "attn_res", {1.9}), 3)})
                  .verdict,
              EndsWith("They have one seed in common: repeat with equal seeds before believing "
                       "it."));
}

TEST(Compare, SeedsOfOneRecipeAreOneArm) {
  const Comparison c =
      compare({with_seed(run("a", "attn_res", {2}), 1), with_seed(run("a", "attn_res", {1.8}), 2)});
  EXPECT_EQ(c.verdict,
            "attn_res ends at a validation loss of 1.9000 in the mean of 2 seeds, from 1.8000 to "
            "2.0000.");
}

TEST(Compare, ADisturbedSpeedIsNotClaimed) {
  const RunData a = run("a", "residual", {2}, 1000);
  RunData b = run("b", "attn_res", {1.9}, 1100);
  for (size_t step = 60; step < 100; ++step) b.metrics[step].tokens_per_second = 1200;
  const Comparison c = compare({a, b});
  EXPECT_THAT(c.verdict, AllOf(HasSubstr("Their speeds were not measured well enough to compare: b "
                                         "was disturbed"),
                               Not(HasSubstr("times its speed"))));
  EXPECT_TRUE(std::isnan(c.runs[1].speed_ratio));
  EXPECT_THAT(c.cautions, Contains(HasSubstr("The speed is not measured well: b was disturbed")));
}

TEST(Compare, SpeedsFarApartAreToldWithCare) {
  const RunData a = run("a", "residual", {2}, 1000);
  const auto cautions_at = [&](double tokens_per_second) {
    return compare({a, run("b", "attn_res", {1.9}, tokens_per_second)}).cautions;
  };
  EXPECT_THAT(cautions_at(1900),
              Contains(HasSubstr("Far from the baseline’s speed: b (1.90 times)")));
  EXPECT_THAT(cautions_at(900), IsEmpty());
}

TEST(Compare, SpeedsOfDifferentMachinesDoNotCompare) {
  const RunData a = run("a", "residual", {2});
  for (const auto& [pointer, reason] : {std::pair{"/machine/threads", "different machines"},
                                        {"/build/version", "different builds"},
                                        {"/recipe/train/recompute", "train.recompute (0, 4)"}}) {
    RunData b = run("b", "attn_res", {1.9}), first = a;
    first.record[Json::json_pointer("/recipe/train/recompute")] = 0;
    b.record[Json::json_pointer("/recipe/train/recompute")] = 0;
    b.record[Json::json_pointer(pointer)] = 4;
    const Comparison c = compare({first, b});
    EXPECT_THAT(c.incomparable, IsEmpty()) << reason;
    EXPECT_THAT(c.verdict, AllOf(HasSubstr("b has the lowest"),
                                 HasSubstr("Their speeds do not compare: "), HasSubstr(reason)));
    EXPECT_TRUE(std::isnan(c.runs[1].speed_ratio)) << reason;
    EXPECT_THAT(c.cautions, Contains(HasSubstr(reason)));
  }
}

}  // namespace
}  // namespace attnres::comparison_test
