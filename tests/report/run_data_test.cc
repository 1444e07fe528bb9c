#include "attnres/report/run_data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "attnres/support/error.h"
#include "tests/report/fake_run.h"

namespace attnres::run_data_test {
namespace {

namespace fs = std::filesystem;
using attnres::testing::FakeRun;
using attnres::testing::write_text;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

fs::path folder(const std::string& name) {
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  return fs::path(::testing::TempDir()) / "attnres_run_data" / test->name() / name;
}

void append(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::app) << text;
}

std::vector<int64_t> steps(const RunData& run) {
  std::vector<int64_t> out;
  for (const Metric& metric : run.metrics) out.push_back(metric.step);
  return out;
}

template <class E>
std::string message_of(const std::vector<fs::path>& paths) {
  try {
    read_runs(paths);
  } catch (const E& error) {
    return error.what();
  }
  return "(no error)";
}

TEST(ReadRuns, ReadsAWholeRun) {
  const FakeRun fake{.name = "full", .mechanism = "attn_res", .layers = 3, .steps = 40};
  const RunData run = read_runs({fake.write(folder("run"))}).at(0);
  EXPECT_EQ(run.label, "full");
  EXPECT_EQ(run.mechanism, "attn_res");
  EXPECT_EQ(run.layers, 3);
  EXPECT_THAT(run.notes, IsEmpty());
  ASSERT_THAT(steps(run), ElementsAre(0, 5, 10, 15, 20, 25, 30, 35, 40));
  EXPECT_DOUBLE_EQ(run.metrics[4].val_loss, fake.loss(20));
  EXPECT_DOUBLE_EQ(run.metrics[4].tokens, 4096 * 21);
  EXPECT_TRUE(std::isnan(run.metrics[3].val_loss));
  const ProbeSnapshot weights = last_probe(run, "depth_weights");
  EXPECT_EQ(weights.step, 40);
  ASSERT_EQ(weights.sites.size(), 7);
  EXPECT_EQ(weights.sites.at(5), fake.weights(5));
  ASSERT_EQ(run.samples.size(), 4);
  EXPECT_EQ(run.samples[3].prompt, "Once upon");
}

TEST(ReadRuns, IgnoresATornLastLine) {
  const fs::path path = FakeRun{.steps = 10}.write(folder("run"));
  append(path / "metrics.jsonl", R"({"step": 15, "loss": 1.2)");
  append(path / "probes.jsonl", R"({"step": 15, "si)");
  const RunData run = read_runs({path}).at(0);
  EXPECT_THAT(steps(run), ElementsAre(0, 5, 10));
  EXPECT_THAT(run.notes, IsEmpty());
}

TEST(ReadRuns, CountsOtherBrokenLines) {
  const fs::path path = FakeRun{.steps = 5}.write(folder("run"));
  append(path / "metrics.jsonl",
         "{\"step\": 7,\n[1]\n{\"loss\": 1}\n{\"step\": 10, \"loss\": 3}\n"
         "{\"step\": 10, \"step\": 11}\n{\"step\": 1e999}\n");
  const RunData run = read_runs({path}).at(0);
  EXPECT_THAT(steps(run), ElementsAre(0, 5, 10));
  EXPECT_THAT(run.notes, Contains(HasSubstr("metrics.jsonl: 5 lines skipped")));
}

TEST(ReadRuns, AResumedRunReplacesWhatItRepeats) {
  const fs::path path = FakeRun{.steps = 5}.write(folder("run"));
  write_text(path / "metrics.jsonl",
             "{\"step\": 1, \"loss\": 5}\n{\"step\": 2, \"loss\": 4}\n{\"step\": 3, \"loss\": 9}\n"
             "{\"step\": 4, \"loss\": 9}\n{\"step\": 3, \"loss\": 3}\n{\"step\": 3, \"val_loss\": "
             "3.5}\n");
  const RunData run = read_runs({path}).at(0);
  ASSERT_THAT(steps(run), ElementsAre(1, 2, 3));
  EXPECT_EQ(run.metrics[2].loss, 3);
  EXPECT_EQ(run.metrics[2].val_loss, 3.5);
}

TEST(ReadRuns, AValueThatIsNotFiniteIsNotMeasured) {
  const fs::path path = FakeRun{.steps = 5}.write(folder("run"));
  write_text(path / "metrics.jsonl",
             "{\"step\": 1, \"loss\": null, \"tokens\": \"many\", \"seconds\": 1}\n");
  const RunData run = read_runs({path}).at(0);
  EXPECT_TRUE(std::isnan(run.metrics.at(0).loss));
  EXPECT_TRUE(std::isnan(run.metrics.at(0).tokens));
  EXPECT_THAT(run.notes, Contains("no finite training loss"));
}

// What would overflow where it is drawn or summed up.
TEST(ReadRuns, ANumberThatNobodyMeasuresIsNotMeasured) {
  const fs::path path = FakeRun{.steps = 5}.write(folder("run"));
  write_text(path / "run.json",
             R"({"recipe":{"train":{"steps":9223372036854775807}},"diverged":{"step":-3}})");
  write_text(
      path / "metrics.jsonl",
      "{\"step\": 1, \"loss\": 1e101, \"val_loss\": 2, \"tokens\": 1e17, \"seconds\": 1e300}\n"
      "{\"step\": 9223372036854775807, \"loss\": 1}\n{\"step\": -1, \"loss\": 1}\n");
  write_text(
      path / "probes.jsonl",
      "{\"step\": 1, \"site\": 4095, \"name\": \"a\", \"value\": [0.5, 1e200]}\n"
      "{\"step\": 1, \"site\": 4096, \"name\": \"a\", \"value\": 1}\n"
      "{\"step\": 1, \"site\": 0, \"name\": \"a\", \"value\": [1" +
          [] {
            std::string more;
            for (int i = 0; i < 2048; ++i) more += ",1";
            return more;
          }() +
          "]}\n");
  const RunData run = read_runs({path}).at(0);
  ASSERT_THAT(steps(run), ElementsAre(1));
  EXPECT_TRUE(std::isnan(run.metrics[0].loss));
  EXPECT_TRUE(std::isnan(run.metrics[0].tokens));
  EXPECT_TRUE(std::isnan(run.metrics[0].seconds));
  EXPECT_EQ(run.metrics[0].val_loss, 2);
  EXPECT_FALSE(run.diverged_at);
  const SiteValues& sites = run.probes.at("a").at(1);
  ASSERT_EQ(sites.size(), 1u);
  EXPECT_EQ(sites.at(4095).at(0), 0.5);
  EXPECT_TRUE(std::isnan(sites.at(4095).at(1)));
}

TEST(ReadRuns, ATraceThatNestsWithoutAnEndIsNone) {
  const fs::path path = FakeRun{.steps = 5}.write(folder("run"));
  write_text(path / "trace.json", std::string(100000, '[') + std::string(100000, ']'));
  const RunData run = read_runs({path}).at(0);
  EXPECT_TRUE(run.trace.is_null());
  EXPECT_THAT(run.notes, Contains("trace.json cannot be read"));
}

TEST(ReadRuns, NamesMissingParts) {
  const fs::path path = folder("run");
  fs::remove_all(path);
  fs::create_directories(path);
  write_text(path / "run.json", "{}");
  const RunData run = read_runs({path}).at(0);
  EXPECT_EQ(run.label, "run");
  EXPECT_THAT(run.notes,
              ElementsAre("no metrics.jsonl", "no probes.jsonl", "no samples.jsonl",
                          "no training step was logged", "run.json has no recipe.model.layers"));
}

TEST(ReadRuns, NamesARunThatEndedEarly) {
  const FakeRun fake{.steps = 100};
  const fs::path path = fake.write(folder("run"));
  const std::string metrics = fake.metrics();
  write_text(path / "metrics.jsonl", metrics.substr(0, metrics.find("{\"step\":50,")));
  EXPECT_THAT(read_runs({path}).at(0).notes, Contains("its log ends at step 45 of 101"));
}

TEST(ReadRuns, RefusesWhatIsNotARunFolder) {
  const fs::path good = FakeRun{.steps = 5}.write(folder("good"));
  EXPECT_THAT(message_of<Error>({good, folder("absent")}), HasSubstr("absent: no such folder"));
  EXPECT_THAT(message_of<Error>({good / "run.json"}), HasSubstr("run.json: not a run folder"));
  fs::create_directories(folder("empty"));
  EXPECT_THAT(message_of<Error>({folder("empty")}), HasSubstr("empty: not a run folder"));
  EXPECT_THAT(message_of<Error>({folder("empty")}), HasSubstr("expected a folder"));
  write_text(good / "run.json", "[]");
  EXPECT_THAT(message_of<Error>({good}), HasSubstr("expected an object"));
  write_text(good / "run.json", "{\"recipe\": ");
  EXPECT_THAT(message_of<Error>({good}), HasSubstr("not valid JSON"));
  EXPECT_THAT(message_of<UsageError>({}), HasSubstr("at least one"));
}

TEST(ReadRuns, RefusesTheSameRunTwice) {
  const fs::path path = FakeRun{.steps = 5}.write(folder("run"));
  EXPECT_THAT(message_of<UsageError>({path, path / "."}), HasSubstr("named twice"));
}

TEST(ReadRuns, TellsEqualNamesApart) {
  const fs::path a = FakeRun{.name = "x", .steps = 5}.write(folder("a"));
  const fs::path x2 = FakeRun{.name = "x", .steps = 5}.write(folder("x-seed2"));
  const fs::path c = FakeRun{.name = "y", .steps = 5}.write(folder("c"));
  const std::vector<RunData> runs = read_runs({a, x2, c});
  EXPECT_EQ(runs[0].label, "x (a)");
  EXPECT_EQ(runs[1].label, "x-seed2");
  EXPECT_EQ(runs[2].label, "y");
}

TEST(ReadRuns, TellsEqualNamesInEqualFoldersApart) {
  const fs::path a = FakeRun{.name = "x", .steps = 5}.write(folder("a") / "x");
  const fs::path b = FakeRun{.name = "x", .steps = 5}.write(folder("b") / "x");
  const std::vector<RunData> runs = read_runs({a, b});
  EXPECT_EQ(runs[0].label, "x (" + a.string() + ")");
  EXPECT_EQ(runs[1].label, "x (" + b.string() + ")");
}

TEST(LastProbe, SkipsAStepThatIsIncomplete) {
  RunData run;
  run.probes["state_rms"][10] = {{0, {1}}, {1, {2}}};
  run.probes["state_rms"][20] = {{0, {3}}, {1, {4}}};
  run.probes["state_rms"][30] = {{0, {5}}};
  EXPECT_EQ(last_probe(run, "state_rms").step, 20);
  EXPECT_EQ(last_probe(run, "gradient_rms").step, -1);
}

}  // namespace
}  // namespace attnres::run_data_test
