#include "attnres/study/live_view.h"

#include <gmock/gmock.h>

#include <chrono>
#include <sstream>

#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "attnres/support/json.h"
#include "attnres/support/terminal.h"
#include "tests/report/fake_run.h"
#include "tests/text/test_files.h"

namespace attnres::live_view_test {
namespace {

namespace fs = std::filesystem;
using ::attnres::testing::FakeRun;
using ::attnres::testing::write_text;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<std::string> lines_of(const std::string& frame) {
  std::istringstream in(frame);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

size_t widest(const std::string& frame) {
  size_t most = 0;
  for (const std::string& line : lines_of(frame)) most = std::max(most, characters(line));
  return most;
}

class LiveRunTest : public ::testing::Test {
 protected:
  LiveRun live(const FakeRun& run) const {
    LiveRun live = read_live_run(run.write(folder_));
    live.quiet_seconds = 2;
    return live;
  }

  const fs::path folder_ = fresh_folder("live") / "run";
  const FakeRun block_ = {.name = "block", .mechanism = "block_attn_res"};
};

TEST_F(LiveRunTest, ShowsWhatTheLogsHold) {
  const std::string frame = draw_live(live(block_), {.columns = 80});
  EXPECT_THAT(frame,
              AllOf(HasSubstr("block  block_attn_res, 4 layers, width 64, 401.7K parameters"),
                    HasSubstr("step 200/201  410ms left"),  // 4096 tokens at 10000 a second
                    HasSubstr("loss             1."), HasSubstr("validation       1.8681  █"),
                    HasSubstr("learning rate  3.00e-03  ▁▁▁"), HasSubstr("tokens/s")));
  EXPECT_THAT(frame, HasSubstr("depth weights at step 200: sites read sources"));
  // The embedding, which all nine sites read, and up to four blocks.
  const std::vector<std::string> lines = lines_of(frame);
  ASSERT_GE(lines.size(), 6u);
  EXPECT_EQ(lines.back(), "  0 1 2 3 4 5 6 7 8");
  EXPECT_EQ(characters(lines[lines.size() - 6]), 2u + 2 * 9);
  EXPECT_TRUE(lines[lines.size() - 6].starts_with("0 ██"));
  EXPECT_TRUE(lines[lines.size() - 2].starts_with("4        "));
}

TEST_F(LiveRunTest, SaysWhetherItIsAtWork) {
  LiveRun run = live(block_);
  EXPECT_TRUE(run.is_at_work());
  EXPECT_NEAR(run.seconds_per_step(), 0.4096, 1e-9);
  run.quiet_seconds = 600;
  EXPECT_FALSE(run.is_at_work());
  EXPECT_THAT(draw_live(run, {}), HasSubstr("step 200/201  wrote nothing for 10m00s"));
  run.steps = 200;
  EXPECT_TRUE(run.is_done());
  EXPECT_THAT(draw_live(run, {}), HasSubstr("step 200/200  done in 1m22s"));
}

TEST_F(LiveRunTest, SaysHowOneThatStoppedGoesOn) {
  LiveRun run = live(block_);
  run.data.record["recipe"]["train"]["checkpoint_every"] = 50;
  run.data.path = "runs/my block";
  run.saved_step = 200;
  EXPECT_FALSE(run.was_interrupted());  // a checkpoint as the recipe asks for
  EXPECT_THAT(draw_live(run, {}), AllOf(HasSubstr(" left"), Not(HasSubstr("goes on"))));
  run.data.metrics.back().step = 199;
  run.saved_step = 199;
  EXPECT_TRUE(run.was_interrupted());
  EXPECT_FALSE(run.is_at_work());
  EXPECT_THAT(draw_live(run, {}),
              HasSubstr("step 199/201  interrupted 2.0s ago\n"
                        "goes on with: attnres train --resume --out 'runs/my block'\n"));
  // Killed, some steps after its last checkpoint.
  run.saved_step = 150;
  run.quiet_seconds = 600;
  EXPECT_THAT(draw_live(run, {}), HasSubstr("wrote nothing for 10m00s\ngoes on with: "));
  run.is_of_study = true;
  EXPECT_THAT(draw_live(run, {}), HasSubstr("the command that began the study goes on with it"));
}

TEST_F(LiveRunTest, SaysThatItDiverged) {
  const fs::path folder = block_.write(folder_);
  Json record = parse_json(read_file(folder / "run.json"), "run.json");
  record["diverged"] = {{"step", 173}, {"error", "its loss is nan"}};
  write_text(folder / "run.json", record.dump());
  LiveRun run = read_live_run(folder);
  run.saved_step = 150;
  EXPECT_FALSE(run.is_at_work()) << "however little time ago it wrote";
  EXPECT_THAT(draw_live(run, {}), HasSubstr("step 200/201  diverged at step 173\n"
                                            "run.json says why, and how a new run goes on\n"));
}

TEST_F(LiveRunTest, SaysItWholeInANarrowTerminal) {
  LiveRun run = live(block_);
  run.data.path = "runs/block";
  run.saved_step = 150;
  run.quiet_seconds = 600;
  EXPECT_THAT(draw_live(run, {.columns = 40}),
              HasSubstr("\ngoes on with:\n  attnres train --resume --out \\\n  runs/block\n"));
}

TEST_F(LiveRunTest, CountsNoTimeToAnEndThatRunJsonDoesNotSay) {
  const fs::path folder = block_.write(folder_);
  Json record = parse_json(read_file(folder / "run.json"), "run.json");
  record["recipe"]["train"]["steps"] = "x";
  write_text(folder / "run.json", record.dump());
  EXPECT_THAT(draw_live(read_live_run(folder), {}),
              AllOf(HasSubstr("\nstep 200\n"), Not(HasSubstr(" left"))));
}

TEST_F(LiveRunTest, HasNoMapWithoutDepthWeights) {
  EXPECT_THAT(draw_live(live({}), {}),
              AllOf(HasSubstr("validation"), Not(HasSubstr("depth weights"))));
}

TEST_F(LiveRunTest, BeginsWithoutALog) {
  block_.write(folder_);
  fs::remove(folder_ / "metrics.jsonl");
  fs::remove(folder_ / "probes.jsonl");
  const LiveRun run = read_live_run(folder_);
  EXPECT_TRUE(run.is_at_work());
  EXPECT_THAT(draw_live(run, {}),
              AllOf(HasSubstr("step 0/201\n"), HasSubstr("no step is done yet")));
}

TEST_F(LiveRunTest, KeepsToTheTerminal) {
  const LiveRun deep = live({.name = "a name that is longer than a narrow terminal",
                             .mechanism = "attn_res",
                             .layers = 16});
  for (const size_t columns : {40, 61, 200}) {
    EXPECT_LE(widest(draw_live(deep, {.columns = columns})), columns);
  }
  for (const size_t lines : {10, 16, 24}) {
    const std::string frame = draw_live(deep, {.columns = 80, .lines = lines});
    EXPECT_LE(lines_of(frame).size(), lines);
    EXPECT_EQ(lines > 13, frame.find("a line adds up") != std::string::npos);
  }
  EXPECT_THAT(draw_live(deep, {.color = true}), HasSubstr("\x1b[48;5;"));
  EXPECT_THAT(draw_live(deep, {}), Not(HasSubstr("\x1b")));
}

class LiveStudyTest : public ::testing::Test {
 protected:
  LiveStudyTest() {
    const auto run = [](const char* name, const char* state, int step, const Json& loss) {
      return Json{{"name", name},           {"state", state},        {"step", step},
                  {"steps", 201},           {"flops", 1e12},         {"seconds", step * 0.5},
                  {"arms", Json::object()}, {"final_val_loss", loss}};
    };
    study_ = {{"study", "sizes"},
              {"question", "Which?"},
              {"runs",
               {run("a-seed1", "done", 201, 1.5), run("b-seed1", "unfinished", 0, nullptr),
                run("c-seed1", "failed", 20, 3.5), run("d-seed1", "missing", 0, nullptr)}}};
    write();
    FakeRun{.name = "b-seed1", .steps = 100}.write(folder_ / "runs" / "b-seed1");
    FakeRun{.name = "c-seed1", .steps = 20}.write(folder_ / "runs" / "c-seed1");
    const auto old = fs::file_time_type::clock::now() - std::chrono::hours(2);
    for (const char* file : {"run.json", "metrics.jsonl"}) {
      fs::last_write_time(folder_ / "runs" / "c-seed1" / file, old);
    }
  }
  void write() const { write_text(folder_ / "study.json", study_.dump()); }

  const fs::path folder_ = fresh_folder("live study");
  Json study_;
};

TEST_F(LiveStudyTest, ShowsEveryRun) {
  const LiveStudy study = read_live_study(folder_);
  EXPECT_FALSE(study.is_done());
  const std::string frame = draw_live(study, {.columns = 80});
  const std::vector<std::string> lines = lines_of(frame);
  ASSERT_EQ(lines.size(), 7u);
  EXPECT_EQ(lines[0], "sizes: Which?");
  // 201, 100 and 20 steps took 191 s; 202 are left of the run at work and of the missing one.
  EXPECT_TRUE(lines[1].starts_with("1/4 runs done, 1 at work, 1 failed, ")) << lines[1];
  EXPECT_THAT(lines[3], AllOf(HasSubstr("a-seed1  done        █████"),
                              HasSubstr("█        201/201  1.5000"), Not(HasSubstr("░"))));
  // At work: its own log is newer than study.json.
  EXPECT_THAT(lines[4], AllOf(HasSubstr("b-seed1  at work     █"), HasSubstr("100/201  ")));
  EXPECT_EQ(study.runs[1].record.step, 100);
  EXPECT_THAT(lines[5], HasSubstr("c-seed1  failed "));
  EXPECT_THAT(lines[6], AllOf(HasSubstr("d-seed1  missing "), HasSubstr("0/201")));
}

TEST_F(LiveStudyTest, ShowsThatARunDiverged) {
  const fs::path record_path = folder_ / "runs" / "c-seed1" / "run.json";
  Json record = parse_json(read_file(record_path), "run.json");
  record["diverged"] = {{"step", 21}, {"error", "its loss is nan"}};
  write_text(record_path, record.dump());
  const LiveStudy study = read_live_study(folder_);
  const std::vector<std::string> lines = lines_of(draw_live(study, {.columns = 80}));
  EXPECT_TRUE(lines[1].starts_with("1/4 runs done, 1 at work, 1 diverged, ")) << lines[1];
  EXPECT_THAT(lines[5], HasSubstr("c-seed1  diverged "));
  EXPECT_FALSE(study.runs[2].has_ended()) << "the study trains it again";
  // With those that failed, before those that are done.
  EXPECT_THAT(lines_of(draw_live(study, {.columns = 80, .lines = 6}))[4], HasSubstr("c-seed1"));
}

TEST_F(LiveStudyTest, KeepsToTheTerminal) {
  study_["runs"][0]["name"] = "a-name-of-a-run-that-is-longer-than-most-seed1";
  write();
  const LiveStudy study = read_live_study(folder_);
  for (const size_t columns : {40, 61, 200}) {
    EXPECT_LE(widest(draw_live(study, {.columns = columns})), columns);
  }
  // Those at work and failed first.
  const std::vector<std::string> lines = lines_of(draw_live(study, {.columns = 80, .lines = 6}));
  ASSERT_EQ(lines.size(), 6u);
  EXPECT_THAT(lines[3], HasSubstr("b-seed1"));
  EXPECT_THAT(lines[4], HasSubstr("c-seed1"));
  EXPECT_EQ(lines[5], "and 2 more");
}

TEST_F(LiveStudyTest, ShowsTheNewestOfThoseThatDoNotFit) {
  const auto now = fs::file_time_type::clock::now();
  study_["runs"] = Json::array();
  for (const int hours : {5, 1, 3}) {
    const std::string name = fmt::format("t{}", hours);
    study_["runs"].push_back({{"name", name}, {"state", "done"}, {"step", 201}, {"steps", 201}});
    FakeRun{.name = name}.write(folder_ / "runs" / name);
    for (const char* file : {"run.json", "metrics.jsonl"}) {
      fs::last_write_time(folder_ / "runs" / name / file, now - std::chrono::hours(hours));
    }
  }
  study_["runs"][2]["state"] = "diverged";
  for (const char* name : {"u1", "u2", "u3", "u4", "u5"}) {
    study_["runs"].push_back({{"name", name}, {"state", "missing"}, {"steps", 201}});
  }
  write();
  const std::vector<std::string> lines =
      lines_of(draw_live(read_live_study(folder_), {.columns = 80, .lines = 7}));
  ASSERT_EQ(lines.size(), 7u);
  EXPECT_THAT(lines[1], HasSubstr("2/8 runs done, 1 diverged"));
  EXPECT_THAT(lines[3], HasSubstr("t1"));
  EXPECT_THAT(lines[4], HasSubstr("t3"));
  EXPECT_THAT(lines[5], HasSubstr("t5"));
}

TEST_F(LiveStudyTest, IsDoneWhenEveryRunIs) {
  for (Json& run : study_["runs"]) run["state"] = "done";
  write();
  const LiveStudy study = read_live_study(folder_);
  EXPECT_TRUE(study.is_done());
  EXPECT_THAT(draw_live(study, {}), HasSubstr("4/4 runs done\n"));
}

TEST_F(LiveStudyTest, RefusesWhatIsNone) {
  write_text(folder_ / "study.json", "[]");
  EXPECT_THAT(message_of<Error>([&] { read_live_study(folder_); }),
              HasSubstr("study.json: not a study's"));
  EXPECT_THAT(message_of<Error>([&] { read_live_study("/nowhere"); }), HasSubstr("/nowhere"));
}

}  // namespace
}  // namespace attnres::live_view_test
