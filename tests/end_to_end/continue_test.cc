// New runs that begin with the weights of others.
#include <gmock/gmock.h>

#include <cmath>

#include "attnres/pretrained/model_directory.h"
#include "attnres/train/run_folder/checkpoint.h"
#include "tests/end_to_end/runs.h"

namespace attnres::testing::continue_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class Continue : public ::testing::Test {
 protected:
  // Trained once for all tests, each of which has a copy.
  Continue() {
    static const fs::path trained = [this] {
      workshop_.train_here("first");
      const fs::path folder = fresh_folder("trained") / "first";
      fs::copy(first_.folder, folder, fs::copy_options::recursive);
      return folder;
    }();
    if (!fs::exists(first_.folder)) {
      fs::copy(trained, first_.folder, fs::copy_options::recursive);
    }
  }
  static Json recipe() {
    Json recipe = block_recipe();
    recipe["train"].update({{"steps", 80}, {"batch_size", 16}, {"learning_rate", 0.01}});
    return recipe;
  }

  // Arguments of `attnres train`, into the folder of that name, without a recipe.
  std::string from(const fs::path& source, const std::string& name,
                   const std::string& more = "") const {
    return "train --threads 1 --data " + quoted(workshop_.data()) + " --from " + quoted(source) +
           " --out " + quoted(workshop_.folder(name)) + " " + more;
  }
  void expect_refused(const Result& result, const std::vector<std::string>& parts,
                      int exit_code = 1) const {
    EXPECT_EQ(result.exit_code, exit_code) << result.err;
    for (const std::string& part : parts) EXPECT_THAT(result.err, HasSubstr(part));
    EXPECT_FALSE(fs::exists(workshop_.folder("next")));
  }

  // Four steps at twice the context.
  const std::string longer_ =
      "--set train.steps=4 train.context=64 train.batch_size=8 train.warmup=0 "
      "train.learning_rate=0.001 train.eval_every=2 train.checkpoint_every=2 ";
  const Workshop workshop_{recipe()};
  const RunPaths first_{workshop_.folder("first")};
};

// The loss of the weights in `folder` on what a run's first step sees.
double loss_of_first_step(const fs::path& folder, const fs::path& data, int64_t context) {
  const Batch batch = first_batch(data, context, 8);
  return load_model(folder)->loss(batch.inputs_BT, batch.targets_BT).item<double>();
}

TEST_F(Continue, BeginsWithTheWeightsAtALongerContext) {
  const double before = read_lines(first_.metrics()).back()["val_loss"];
  EXPECT_LT(before, std::log(256) - 1) << "the run learned nothing: the test tests nothing";
  const Result result = run_program(from(first_.folder, "next", longer_));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const RunPaths next{workshop_.folder("next")};
  const std::vector<Json> metrics = read_lines(next.metrics());
  ASSERT_EQ(metrics.size(), 4u);
  EXPECT_EQ(metrics[0]["step"], 1);
  EXPECT_EQ(metrics[0]["tokens"], 8 * 64);
  const double loss = metrics[0]["loss"];
  EXPECT_LT(loss, before + 0.4);  // on text that the run may know
  EXPECT_NEAR(loss, loss_of_first_step(first_.best(), workshop_.data(), 64), 1e-5);
  EXPECT_EQ(ModelDirectory(next.last()).context(), 64);

  const Json run = read_run_json(next), old = read_run_json(first_);
  EXPECT_EQ(run["recipe"]["name"], "tiny-continued");
  EXPECT_EQ(run["recipe"]["model"], old["recipe"]["model"]);
  EXPECT_EQ(run["from"]["name"], "tiny");
  EXPECT_EQ(run["from"]["checksum"].get<std::string>().size(), 16u);
  EXPECT_FALSE(old.contains("from"));
}

// The machine's headers are no text that a model is meant to go on with.
TEST_F(Continue, TakesTheTextOfItsRunWhereNoneIsNamed) {
  const auto begin = [&](const fs::path& source, const std::string& name,
                         const std::string& more = "") {
    return run_program("train --threads 1 --from " + quoted(source) + " --out " +
                       quoted(workshop_.folder(name)) + " " + longer_ + more);
  };
  const Result result = begin(first_.folder, "unnamed");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("trains on the text of " + first_.folder.string()));
  EXPECT_THAT(result.err, Not(HasSubstr("held out another part")));
  ASSERT_EQ(run_program(from(first_.folder, "named", longer_)).exit_code, 0);
  EXPECT_TRUE(same_results({workshop_.folder("unnamed")}, {workshop_.folder("named")}));
  const Json of_first = read_run_json(first_)["data"],
             of_next = read_run_json({workshop_.folder("unnamed")})["data"];
  for (const char* key : {"paths", "hash"}) EXPECT_EQ(of_next[key], of_first[key]) << key;

  // With a recipe too, and of its own validation text; how it was split goes along.
  const fs::path other = workshop_.folder("other.txt");
  write_text(other, real_text(60000).substr(40000));
  ASSERT_EQ(
      run_program(from(first_.folder, "split",
                       longer_ + " data.validation_fraction=0.2 --validation " + quoted(other)))
          .exit_code,
      0);
  ASSERT_EQ(begin(workshop_.folder("split"), "third").exit_code, 0);
  const Json third = read_run_json({workshop_.folder("third")});
  EXPECT_EQ(third["data"]["validation_paths"], Json({other.string()}));
  EXPECT_EQ(third["recipe"]["data"]["validation_fraction"], 0.2);

  // A model that is no run's checkpoint does not say.
  const fs::path plain = workshop_.folder("plain");
  fs::copy(first_.best(), plain);
  expect_refused(begin(plain, "next"), {"--data", "plain"}, 2);
  expect_refused(
      run_program("train --recipe " + quoted(workshop_.folder("recipe.json")) + " --from " +
                  quoted(plain) + " --out " + quoted(workshop_.folder("next"))),
      {"--data", "plain"}, 2);
}

TEST_F(Continue, WarnsWhereWhatIsHeldOutWasTrainedOn) {
  const Result result =
      run_program(from(first_.folder, "more", longer_ + " data.validation_fraction=0.3"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("warning"), HasSubstr("held out another part"),
                                HasSubstr("data.validation_fraction was 0.05")));
}

TEST_F(Continue, OnIdsWithoutATokenizer) {
  const fs::path bare = workshop_.folder("bare"), ids = workshop_.folder("ids.bin");
  fs::copy(first_.best(), bare);
  for (const fs::path& file : tokenizer_files(bare)) fs::remove(file);
  std::string bytes;
  for (const char c : real_text(8000)) bytes += {c, '\0'};
  write_text(ids, bytes);
  const fs::path out = workshop_.folder("on_ids");
  const Result result = run_program("train --threads 1 --from " + quoted(bare) + " --data " +
                                    quoted(ids) + " --out " + quoted(out) + " " + longer_);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out,
              HasSubstr("next:  attnres generate --model " + out.string() + " --ids 0"));
  EXPECT_EQ(run_program("generate --model " + quoted(out) + " --ids 0 --max-tokens 3").exit_code,
            0);
  EXPECT_EQ(workshop_.resume("on_ids", "--set train.steps=6").exit_code, 0);
}

TEST_F(Continue, FromACheckpointAndFromAPlainModelDirectory) {
  const auto first_loss = [&](const fs::path& source, const std::string& name) {
    const Result result = run_program(from(source, name, longer_));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return read_lines(RunPaths{workshop_.folder(name)}.metrics()).at(0)["loss"];
  };
  const fs::path plain = workshop_.folder("plain");
  fs::copy(first_.best(), plain);
  EXPECT_EQ(first_loss(plain, "a"), first_loss(first_.folder, "b"));
  EXPECT_EQ(read_run_json({workshop_.folder("a")})["from"]["name"], "plain");
  first_loss(first_.last(), "c");
  EXPECT_EQ(read_run_json({workshop_.folder("c")})["from"]["step"], 80);
}

TEST_F(Continue, TakesARecipeOfTheSameModelOnly) {
  const auto with_recipe = [&](const std::string& more) {
    return workshop_.train("next", "--from " + quoted(first_.folder) + " " + more);
  };
  expect_refused(with_recipe("--set model.width=64"), {"model.width: 32 -> 64"});
  expect_refused(with_recipe("--set model.depth_mixing.block_size=4 model.layers=3"),
                 {"model.depth_mixing.block_size: 2 -> 4", "model.layers: 2 -> 3"});
  expect_refused(with_recipe("--set tokenizer.kind=sentencepiece tokenizer.vocab_size=400"),
                 {"tokenizer.kind: \"bytes\" -> \"sentencepiece\"", "tokenizer.vocab_size"});
  expect_refused(run_program(from(workshop_.folder("nowhere"), "next")), {"nowhere"});
  expect_refused(run_program(from(first_.folder, "next", "--resume")), {"--from", "--resume"}, 2);
  const Result result = with_recipe(longer_ + "train.optimizer=muon");
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

// From a checkpoint of its own, since what it began with may be gone.
TEST_F(Continue, ResumesExactlyEvenBeforeItsFirstCheckpoint) {
  const RunPaths whole{workshop_.folder("whole")}, stopped{workshop_.folder("stopped")};
  const std::string settings =
      longer_ + "train.steps=60 train.eval_every=30 train.checkpoint_every=60";
  ASSERT_EQ(run_program(from(first_.folder, "whole", settings)).exit_code, 0);
  Child child(from(first_.folder, "stopped", settings));
  ASSERT_TRUE(child.wait_for_steps(stopped, 3)) << child.errors();
  child.send(SIGKILL);
  EXPECT_EQ(child.wait(), 128 + SIGKILL);
  EXPECT_EQ(read_training_state(stopped.last()).step, 0);
  fs::rename(first_.folder, workshop_.folder("gone"));
  const Result resumed = workshop_.resume("stopped");
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_TRUE(same_results(stopped, whole));
}

TEST_F(Continue, WithoutItsWeightsDoesNotResume) {
  ASSERT_EQ(run_program(from(first_.folder, "next", longer_)).exit_code, 0);
  fs::remove_all(RunPaths{workshop_.folder("next")}.last());
  const Result resumed = workshop_.resume("next");
  EXPECT_EQ(resumed.exit_code, 1);
  EXPECT_THAT(resumed.err, HasSubstr("began with are gone"));
}

}  // namespace
}  // namespace attnres::testing::continue_test
