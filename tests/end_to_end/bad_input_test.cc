// What a user can get wrong, or a machine do to a run: one clear message, and nothing is lost.
#include <gmock/gmock.h>

#include <map>
#include <string>

#include "attnres/formats/safetensors.h"
#include "attnres/support/error.h"
#include "attnres/train/run_folder/checkpoint.h"
#include "tests/end_to_end/runs.h"

namespace attnres::testing::bad_input_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

// The error's text, which comes after any lines of progress.
std::string error_of(const Result& result) {
  const size_t begin = result.err.rfind("attnres: error: ");
  EXPECT_NE(begin, std::string::npos) << result.err;
  return begin == std::string::npos ? "" : result.err.substr(begin);
}

void expect_error(const Result& result, int exit_code, const std::vector<std::string>& parts) {
  EXPECT_EQ(result.exit_code, exit_code) << result.err;
  EXPECT_EQ(result.out, "");
  const std::string error = error_of(result);
  for (const std::string& part : parts) EXPECT_THAT(error, HasSubstr(part));
}

class BadInput : public ::testing::Test {
 protected:
  // A run that must not begin: no folder remains.
  void expect_refused(const std::string& more, int exit_code,
                      const std::vector<std::string>& parts) const {
    SCOPED_TRACE(more);
    expect_error(workshop_.train("run", more), exit_code, parts);
    EXPECT_FALSE(fs::exists(workshop_.folder("run")));
  }

  const Workshop workshop_{block_recipe(), real_text(4000)};
};

TEST_F(BadInput, OptionsOfTheCommand) {
  expect_error(run_program("train"), 2, {"--recipe", "--resume"});
  expect_error(run_program("train --recipe nowhere.json"), 1, {"nowhere.json", "no such file"});
  expect_error(run_program("train --resume --out nowhere"), 1, {"nowhere", "no run"});
  const fs::path study = fresh_folder("study");
  write_text(study / "study.json", "{}");
  expect_error(run_program("train --resume --out " + quoted(study)), 1,
               {"--resume --out", "holds a study", (study / "runs/NAME").string()});
  expect_refused("--threads 0", 2, {"--threads", "1 to 4096", "0"});
  expect_refused("--threads -2", 2, {"--threads", "-2"});
  expect_refused("--device cuda", 2, {"--device cuda: ", "GPU"});
  expect_refused("--recipes x", 2, {"--recipes", "--recipe"});
  expect_refused("--set train.steps", 2, {"--set train.steps", "key=value"});
}

// A mapped file loses its end in the middle of a run: its last checkpoint stands.
TEST_F(BadInput, TokensThatBecomeShorter) {
  const fs::path tokens = workshop_.folder("tokens"), recipe = workshop_.folder("long.json");
  ByteTokenizer().save(workshop_.folder("bytes"));
  const Result made = run_program(fmt::format("tokenize --model {} --data {} --out {}",
                                              quoted(workshop_.folder("bytes")),
                                              quoted(workshop_.data()), quoted(tokens)));
  ASSERT_EQ(made.exit_code, 0) << made.err;
  Json long_recipe = block_recipe();
  long_recipe["train"].update(
      {{"steps", 100'000}, {"checkpoint_every", 5}, {"eval_every", 100'000}});
  write_text(recipe, long_recipe.dump());
  const RunPaths run{workshop_.folder("run")};
  Child child(fmt::format("train --threads 1 --recipe {} --data {} --out {}", quoted(recipe),
                          quoted(tokens), quoted(run.folder)));
  ASSERT_TRUE(child.wait_for_steps(run, 7)) << child.errors();
  fs::resize_file(tokens / "tokens-00000.bin", 0);
  EXPECT_EQ(child.wait(), 1);
  EXPECT_THAT(child.errors(), HasSubstr("attnres: error: a file that is mapped into memory"));
  EXPECT_GE(read_training_state(run.last()).step, 5);
}

TEST_F(BadInput, KeysOfTheRecipe) {
  expect_refused("--set train.stepz=3", 2, {"train.stepz", "train.steps"});
  expect_refused("--set train.steps=many", 2, {"train.steps", "whole number", "many"});
  expect_refused("--set model.depth_mixing=mhc", 2, {"write model.depth_mixing.type=mhc"});
  expect_refused("--set model.depth_mixing.type=magic", 2,
                 {"magic", "residual, attn_res, block_attn_res"});
  for (const auto& [size, expected] : std::map<std::string, std::string>{
           {"0", "1 or more"}, {"-1", "1 or more"}, {"5", "1 to 4"}}) {
    expect_refused("--set model.depth_mixing.block_size=" + size, 2,
                   {"model.depth_mixing.block_size", expected, size});
  }
  expect_refused("--set model.heads=3", 2, {"model.width", "32", "3 heads"});
  expect_refused("--set model.layers=1000000", 2, {"model.layers", "1 to 1024", "1000000"});
  expect_refused("--set train.batch_size=10000000", 1, {"train.batch_size", "--force"});
  expect_error(run_program("train --recipe " + quoted(workshop_.folder("recipe.json")) +
                           " --set name=../../x"),
               2, {"name", "../../x", "--out"});
}

TEST_F(BadInput, SettingsThatAChoiceLeavesBehind) {
  const Result result =
      workshop_.train("run", "--set model.depth_mixing.type=residual train.steps=2");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("note: model.depth_mixing.block_size=2 is left out"));
  EXPECT_THAT(result.err, HasSubstr("warning: train.warmup has 4 steps and the run 2"));
}

TEST_F(BadInput, RecipeThatIsNotJson) {
  const fs::path recipe = fresh_folder("broken") / "broken.json";
  write_text(recipe, "{\n  \"name\": \"x\",\n  \"train\": {steps: 3}\n}\n");
  expect_error(run_program("train --recipe " + quoted(recipe)), 1,
               {"broken.json", "line 3, column 13"});
}

TEST_F(BadInput, Data) {
  const fs::path folder = fresh_folder("data");
  const auto with_data = [&](const fs::path& data, const std::string& more = "") {
    return run_program("train --threads 1 --recipe " + quoted(workshop_.folder("recipe.json")) +
                       " --data " + quoted(data) + " --out " + quoted(workshop_.folder("run")) +
                       " " + more);
  };
  expect_error(with_data(folder / "nowhere.txt"), 1, {"nowhere.txt", "no such file or folder"});
  write_text(folder / "empty.txt", "");
  expect_error(with_data(folder / "empty.txt"), 1, {"empty.txt", "no text"});
  write_text(folder / "short.txt", "Twenty bytes of text");
  expect_error(with_data(folder / "short.txt"), 1,
               {"20 bytes", "least 32", "context", "--validation"});
  EXPECT_FALSE(fs::exists(workshop_.folder("run")));

  std::string binary;
  for (int i = 0; i < 4000; ++i) binary += static_cast<char>(1 + i * 37 % 255);
  write_text(folder / "binary", binary);
  expect_error(
      with_data(folder / "binary", "--set tokenizer.kind=sentencepiece tokenizer.vocab_size=400"),
      1, {"binary", "UTF-8", "byte"});
  EXPECT_FALSE(fs::exists(workshop_.folder("run")));
  EXPECT_EQ(with_data(folder / "binary", "--set train.steps=1").exit_code, 0);
}

// By every command that reads text.
TEST_F(BadInput, DataThatIsNoText) {
  const fs::path folder = fresh_folder("data"), archive = folder / "a.txt";
  write_text(archive, "PK\x03\x04" + std::string(4000, 'a'));
  const fs::path wide = folder / "wide.txt";
  write_text(wide, "\xff\xfe" + std::string(4000, 'a'));
  const fs::path study = folder / "study.json";
  write_text(study,
             R"({"name": "s", "question": "Does it?", "base": "recipe.json", "seeds": 1, "axes":
                       {"mixing": {"plain": {"model.depth_mixing": {"type": "residual"}}}}})");
  write_text(folder / "recipe.json", block_recipe().dump());
  const std::string model = " --model " +
                            quoted(fs::path(ATTNRES_SOURCE_DIR) / "models/tiny-shakespeare"),
                    out = " --out ";
  for (const auto& [data, what] :
       {std::pair(archive, "is a zip archive"), std::pair(wide, "is UTF-16")}) {
    const std::string given = " --data " + quoted(data);
    for (const std::string& command :
         {"train --recipe " + quoted(folder / "recipe.json") + out + quoted(folder / "run") + given,
          "study " + quoted(study) + out + quoted(folder / "studied") + given,
          "compare --smoke" + out + quoted(folder / "compared") + given, "eval" + model + given,
          "inspect --all" + model + given}) {
      SCOPED_TRACE(command);
      expect_error(run_program(command), 1, {data.filename().string(), what});
    }
  }
  for (const char* written : {"run", "studied/runs", "compared"}) {
    EXPECT_FALSE(fs::exists(folder / written)) << written;
  }
}

TEST_F(BadInput, FolderThatCannotBeMade) {
  for (const fs::path& out : {workshop_.data() / "run", fs::path("/proc/run")}) {
    expect_error(
        run_program("train --threads 1 --recipe " + quoted(workshop_.folder("recipe.json")) +
                    " --data " + quoted(workshop_.data()) + " --out " + quoted(out)),
        1, {out.string(), "cannot make this folder"});
  }
}

// A run of 40 steps that was stopped by Ctrl-C.
class BadResume : public ::testing::Test {
 protected:
  BadResume() { disturb(workshop_, "run", 5, SIGINT); }

  // Fails for these reasons, and changes nothing.
  void expect_refused(const Result& result, int exit_code, const std::vector<std::string>& parts,
                      const std::map<std::string, std::string>& before) const {
    expect_error(result, exit_code, parts);
    EXPECT_EQ(contents(run_.folder), before);
  }
  void expect_refused(const Result& result, int exit_code,
                      const std::vector<std::string>& parts) const {
    expect_refused(result, exit_code, parts, before_);
  }
  void expect_goes_on() const {
    workshop_.train_here("run", /*resume=*/true);
    workshop_.train_here("whole");
    EXPECT_TRUE(same_results(run_, {workshop_.folder("whole")}));
  }

  const Workshop workshop_{block_recipe()};
  const RunPaths run_{workshop_.folder("run")};
  std::map<std::string, std::string> before_;

 private:
  void SetUp() override {
    ASSERT_TRUE(fs::exists(run_.last()));
    before_ = contents(run_.folder);
  }
};

TEST_F(BadResume, OverAnotherRun) {
  expect_refused(workshop_.train("run"), 1, {"unfinished run", "of 40", "--resume", "--out"});
  expect_refused(workshop_.resume("run", "--set train.learning_rate=0.5 train.seed=9"), 1,
                 {"train.learning_rate: 0.001 -> 0.5", "train.seed: 1 -> 9", "another --out"});
  write_text(workshop_.data(), real_text(40000) + "more");
  expect_refused(workshop_.resume("run"), 1, {"data.hash"});
  write_text(workshop_.data(), real_text(40000));
  {
    const FolderLock lock(run_.folder);
    for (const Result& result : {workshop_.resume("run"), workshop_.train("run")}) {
      expect_refused(result, 1, {run_.folder.string(), "in use", "--out"});
    }
  }
  expect_goes_on();
  expect_error(workshop_.train("run"), 1, {"finished run of 40 steps", "--out"});
}

TEST_F(BadResume, FromADamagedCheckpoint) {
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "training_state.json",
                           "config.json", "tokenizer.json"}) {
    SCOPED_TRACE(name);
    const fs::path path = run_.last() / name;
    const std::string good = read_file(path);
    const auto refuses = [&](const std::string& bad) {
      write_text(path, bad);
      const auto before = contents(run_.folder);
      EXPECT_THAT(message_of<Error>([&] { workshop_.train_here("run", /*resume=*/true); }),
                  HasSubstr(name));
      EXPECT_EQ(contents(run_.folder), before);
      write_text(path, good);
    };
    refuses(good.substr(0, good.size() / 2));
    if (std::string(name) == "config.json") continue;  // a recipe holds all of it
    std::string flipped = good;
    flipped[good.size() * 3 / 4] ^= 4;
    refuses(flipped);
  }
  expect_goes_on();
}

TEST_F(BadResume, FromACheckpointOfAnotherShape) {
  const RunPaths wide = workshop_.trained("wide", "--set model.width=64 train.steps=1");
  for (const auto& entry : fs::directory_iterator(wide.last())) {
    fs::copy(entry.path(), run_.last(),
             fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  }
  expect_refused(workshop_.resume("run"), 1, {run_.last().string(), "shape"},
                 contents(run_.folder));
}

TEST_F(BadResume, ThatRunsOutOfDisk) {
  // Blocks of 512 bytes: the optimizer does not fit; then the log of steps does not.
  const auto limited = [&](size_t blocks) {
    return run_shell(
        fmt::format("ulimit -f {}; attnres train --threads 1 --resume "
                    "--out {}",
                    blocks, quoted(run_.folder)));
  };
  const auto last = contents(run_.last());
  const auto expect_stands = [&] {
    EXPECT_EQ(contents(run_.last()), last);
    for (const auto& entry : fs::directory_iterator(run_.checkpoints())) {
      EXPECT_FALSE(entry.path().has_extension()) << entry.path();  // nothing half-written
    }
  };
  const size_t metrics = fs::file_size(run_.metrics());
  const size_t optimizer = fs::file_size(run_.last() / "optimizer.safetensors");
  expect_error(limited(optimizer / 512 - 8), 1,
               {"optimizer.safetensors", "cannot write", "ulimit -f"});
  expect_stands();
  expect_error(limited(metrics / 512 + 1), 1, {run_.folder.string(), "cannot write"});
  expect_stands();
  expect_goes_on();
}

TEST(TwoAtOnce, OneOfThemTrains) {
  const Workshop workshop(block_recipe());
  const RunPaths run{workshop.folder("run")};
  Child first(workshop.arguments("run")), second(workshop.arguments("run"));
  const int codes[] = {first.wait(), second.wait()};
  EXPECT_THAT(codes, ::testing::UnorderedElementsAre(0, 1));
  EXPECT_THAT((codes[0] == 1 ? first : second).errors(),
              ::testing::AnyOf(HasSubstr("in use"), HasSubstr("holds a")));
  EXPECT_TRUE(same_results(run, workshop.trained("alone")));
}

TEST(Divergence, ThatStaysFiniteIsNamed) {
  Json recipe = block_recipe();
  recipe["train"].update(
      {{"learning_rate", 10.0}, {"warmup", 0}, {"schedule", "wsd"}, {"steps", 6}});
  const Workshop workshop(recipe);
  const Result result = workshop.train("run");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const double loss = read_lines(RunPaths{workshop.folder("run")}.metrics()).back()["val_loss"];
  ASSERT_GT(loss, std::log(256)) << "nothing to name: the test tests nothing";
  EXPECT_THAT(result.out, HasSubstr(fmt::format("it ends worse than a guess: {:.2f} nats above",
                                                loss - std::log(256))));
  EXPECT_EQ(result.out.find("learned from context"), std::string::npos) << result.out;
}

TEST(Divergence, StopsAndKeepsTheLastGoodCheckpoint) {
  Json recipe = block_recipe();
  recipe["train"].update({{"learning_rate", 10.0},
                          {"weight_decay", 10.0},
                          {"clip", 0},
                          {"warmup", 0},
                          {"checkpoint_every", 1}});
  const Workshop workshop(recipe);
  const RunPaths run{workshop.folder("run")};
  const Result result = workshop.train("run");
  const int64_t good = read_training_state(run.last()).step;
  EXPECT_GT(good, 1);
  EXPECT_LT(good, 40);
  expect_error(result, 3,
               {fmt::format("step {}: ", good + 1), "training stopped", run.last().string(),
                "--set train.learning_rate=5 "});
  const Json noted = read_run_json(run).at("diverged");
  EXPECT_EQ(noted.at("step"), good + 1);
  EXPECT_THAT(result.err, HasSubstr(noted.at("error").get<std::string>()));
  EXPECT_THAT(error_of(result), Not(HasSubstr("of document")));
  const SafetensorsFile weights(run.last() / "model.safetensors");
  for (const std::string& name : weights.names()) {
    EXPECT_TRUE(weights.read(name).isfinite().all().item<bool>()) << name;
  }
  // Going on comes to the same end, and the checkpoint still stands.
  const auto before = contents(run.last());
  EXPECT_EQ(error_of(workshop.resume("run")), error_of(result));
  EXPECT_EQ(contents(run.last()), before);
}

}  // namespace
}  // namespace attnres::testing::bad_input_test
