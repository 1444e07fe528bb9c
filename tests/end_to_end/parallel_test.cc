// Several processes that train one model, started and disturbed as on a cluster.
#include <gmock/gmock.h>

#include "attnres/parallel/mpi_communicator.h"
#include "attnres/train/run_folder/checkpoint.h"
#include "tests/end_to_end/processes.h"
#include "tests/end_to_end/runs.h"
#include "tests/parallel/mpirun.h"

namespace attnres::testing::parallel_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

Json recipe() {
  Json json = block_recipe();
  json["train"].update({{"steps", 12}, {"accumulate", 4}, {"checkpoint_every", 4}});
  return json;
}

constexpr const char* kPipeline = "--set parallel.pipeline=2 parallel.virtual=2";

std::string program(const Workshop& workshop, const std::string& name, const std::string& more) {
  return "'" ATTNRES_PROGRAM "' " + workshop.arguments(name, more);
}

double largest_difference(const RunPaths& a, const RunPaths& b) {
  const auto lines = read_lines(a.metrics()), others = read_lines(b.metrics());
  EXPECT_EQ(lines.size(), others.size());
  double largest = 0;
  for (size_t i = 0; i < std::min(lines.size(), others.size()); ++i) {
    for (const char* key : {"loss", "val_loss"}) {
      EXPECT_EQ(lines[i].contains(key), others[i].contains(key));
      if (!lines[i].contains(key) || !others[i].contains(key)) continue;
      const double x = lines[i][key], y = others[i][key];
      largest = std::max(largest, std::abs(x / y - 1));
    }
  }
  return largest;
}

class Mpirun : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_mpi()) GTEST_SKIP() << "this build has no MPI";
  }
};

TEST_F(Mpirun, TrainsAsOneProcessDoes) {
  const Workshop workshop(recipe());
  const RunPaths alone = workshop.trained("alone");
  const Result result = run_shell(
      mpirun(4, program(workshop, "many", "--json --set parallel.data=2 parallel.pipeline=2")));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(Json::parse(result.out)["steps"], 12);
  EXPECT_LT(largest_difference({workshop.folder("many")}, alone), 1e-4);
  ASSERT_EQ(run_shell(mpirun(2, program(workshop, "shared", "--set parallel.tensor=2"))).exit_code,
            0);
  EXPECT_LT(largest_difference({workshop.folder("shared")}, alone), 1e-4);

  // Its checkpoints are in shards, which every command reads.
  const fs::path run = workshop.folder("many"), exported = workshop.folder("exported"),
                 imported = workshop.folder("imported");
  ASSERT_TRUE(fs::exists(RunPaths{run}.best() / "model-00004-of-00004.safetensors"));
  const auto read_by = [&](const std::string& arguments) {
    const Result read = run_program(arguments);
    EXPECT_EQ(read.exit_code, 0) << arguments << ": " << read.err;
    return read.out;
  };
  read_by(fmt::format("export --model {} --out {}", quoted(run), quoted(exported)));
  read_by(fmt::format("import --from {} --out {}", quoted(RunPaths{run}.best()), quoted(imported)));
  EXPECT_TRUE(fs::exists(exported / "model.safetensors"));
  EXPECT_EQ(read_file(exported / "model.safetensors"), read_file(imported / "model.safetensors"));
  const auto loss_of = [&](const fs::path& model) {
    return Json::parse(read_by(fmt::format("eval --json --threads 1 --model {} --data {}",
                                           quoted(model), quoted(workshop.data()))))["loss"]
        .get<double>();
  };
  EXPECT_EQ(loss_of(run), loss_of(exported));
  EXPECT_NE(read_by("generate --max-tokens 4 --prompt a --model " + quoted(run)), "");
}

// They hold conversations, some rows of which have no answer; each process maps them by itself.
TEST_F(Mpirun, TrainsOnMappedTokensAsOneProcessDoes) {
  const fs::path base = fresh_folder("mapped");
  std::string lines;
  for (int i = 0; i < 300; ++i) {
    lines += fmt::format(R"({{"messages": [{{"role": "user", "content": "{} {}?"}},)"
                         R"( {{"role": "assistant", "content": "{}!"}}]}})"
                         "\n",
                         std::string(i % 150, 'x'), i, i * i);
  }
  write_text(base / "chats.jsonl", lines);
  write_text(base / "recipe.json", recipe().dump());
  ByteTokenizer().save(base / "bytes");
  const Result made = run_program(fmt::format("tokenize --chat --model {} --data {} --out {}",
                                              quoted(base / "bytes"), quoted(base / "chats.jsonl"),
                                              quoted(base / "tokens")));
  ASSERT_EQ(made.exit_code, 0) << made.err;
  const auto train = [&](const std::string& name, int processes, const std::string& settings) {
    const std::string command = fmt::format(
        "'" ATTNRES_PROGRAM "' train --threads 1 --recipe {} --data {} --out {} {}",
        quoted(base / "recipe.json"), quoted(base / "tokens"), quoted(base / name), settings);
    const Result result = run_shell(processes > 1 ? mpirun(processes, command) : command);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return RunPaths{base / name};
  };
  const RunPaths alone = train("alone", 1, "");
  EXPECT_LT(largest_difference(train("data", 2, "--set parallel.data=2"), alone), 1e-4);
  EXPECT_LT(largest_difference(train("pipeline", 2, kPipeline), alone), 1e-4);
  // Negative control: of other rows.
  EXPECT_GT(largest_difference(train("other", 1, "--set train.seed=7"), alone), 1e-3);
}

TEST_F(Mpirun, SaysOnceWhatIsWrong) {
  const Workshop workshop(recipe());
  const auto refused = [&](const std::string& command) {
    const Result result = run_shell(command);
    EXPECT_NE(result.exit_code, 0);
    const size_t first = result.err.find("attnres: error: ");
    EXPECT_NE(first, std::string::npos) << result.err;
    EXPECT_EQ(result.err.find("attnres: error: ", first + 1), std::string::npos) << result.err;
    EXPECT_FALSE(fs::exists(workshop.folder("run") / "run.json"));
    return result.err;
  };
  EXPECT_THAT(refused(mpirun(2, program(workshop, "run", "--set train.steps=-1"))),
              HasSubstr("train.steps"));
  EXPECT_THAT(refused(mpirun(3, program(workshop, "run", kPipeline))),
              HasSubstr("2 processes, but 3 were started"));
  EXPECT_THAT(refused(program(workshop, "run", kPipeline)), HasSubstr("-n 2 "));
  // Another recipe for rank 1.
  EXPECT_THAT(refused(mpirun(1, program(workshop, "run", kPipeline)) + " : -n 1 " +
                      program(workshop, "run", std::string(kPipeline) + " train.seed=7")),
              HasSubstr("rank 1: recipe.train.seed: 1 -> 7"));
  // What all of them read, and one finds damaged.
  const std::string in_two = program(workshop, "saved", kPipeline);
  ASSERT_EQ(run_shell(mpirun(2, in_two)).exit_code, 0);
  const fs::path shard =
      RunPaths{workshop.folder("saved")}.last() / "optimizer-00002-of-00002.safetensors";
  std::string bytes = read_file(shard);
  bytes.back() ^= 1;
  write_text(shard, bytes);
  EXPECT_THAT(refused(mpirun(2, in_two + " --resume")),
              AllOf(HasSubstr(shard.string()), HasSubstr("damaged")));
}

// One stops, as one that hangs: the other waits for as long as the recipe says, and says for whom.
TEST_F(Mpirun, EndsWithARankThatHangs) {
  Json long_recipe = recipe();
  long_recipe["train"]["steps"] = 100000;
  const Workshop workshop(long_recipe);
  const RunPaths run{workshop.folder("run")};
  Child launcher = Child::of_shell(
      mpirun(2, program(workshop, "run", std::string(kPipeline) + " parallel.timeout=4")));
  ASSERT_TRUE(launcher.wait_for_steps(run, 9)) << launcher.errors();
  const Ranks ranks(launcher.id());
  ASSERT_EQ(ranks.count(), 2u);
  ranks.signal_last(SIGSTOP);
  EXPECT_NE(launcher.wait(), 0);
  EXPECT_THAT(launcher.errors(), ContainsRegex("rank [01] has waited 4 s for .* rank [01]"));
  EXPECT_TRUE(ranks.all_end());
  EXPECT_GE(read_training_state(run.last()).step, 8);
}

// One is killed while it saves: all end, and the run goes on from its last whole checkpoint, in
// another layout.
TEST_F(Mpirun, EndsWithARankThatIsKilledAndGoesOn) {
  Json long_recipe = recipe();
  long_recipe["train"].update({{"steps", 100000}, {"checkpoint_every", 1}});
  const Workshop workshop(long_recipe);
  const RunPaths run{workshop.folder("run")};
  Child launcher = Child::of_shell(mpirun(2, program(workshop, "run", kPipeline)));
  ASSERT_TRUE(launcher.wait_for_steps(run, 9)) << launcher.errors();
  const Ranks ranks(launcher.id());
  ASSERT_EQ(ranks.count(), 2u);
  fs::path part = run.last();
  part += ".part";
  ASSERT_TRUE(launcher.wait_until([&] { return fs::exists(part); }));
  ranks.signal_last(SIGKILL);
  EXPECT_NE(launcher.wait(), 0);
  EXPECT_THAT(launcher.errors(), HasSubstr("signal 9 (Killed)"));
  EXPECT_TRUE(ranks.all_end());

  recover_folder(run.last());
  const int64_t saved = read_training_state(run.last()).step;
  EXPECT_GE(saved, 8);
  Child again(
      fmt::format("train --threads 1 --resume --out {} --set parallel.pipeline=1 "
                  "parallel.virtual=1",
                  quoted(run.folder)));
  EXPECT_TRUE(again.wait_for_steps(run, saved + 3)) << again.errors();
  again.send(SIGINT);
  EXPECT_EQ(again.wait(), 130) << again.errors();
}

}  // namespace
}  // namespace attnres::testing::parallel_test
