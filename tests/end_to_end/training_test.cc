// The whole way from text to a model that writes.
#include <gmock/gmock.h>

#include <cmath>

#include "tests/end_to_end/runs.h"

namespace attnres::testing::training_test {
namespace {

namespace fs = std::filesystem;

TEST(BestCheckpoint, IsTheOneOfTheLowestLossToTheLastBit) {
  Json recipe = block_recipe();
  // Much too fast: it gets worse again.
  recipe["train"].update({{"learning_rate", 0.3},
                          {"final_fraction", 1.0},
                          {"eval_every", 3},
                          {"eval_tokens", 1000000}});
  const std::string text = real_text(40000);
  const Workshop workshop(recipe, text);
  const Result result = workshop.train("run", "--json");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const RunPaths run{workshop.folder("run")};

  Json best;
  for (const Json& line : read_lines(run.metrics())) {
    if (line.contains("val_loss") && (best.is_null() || line["val_loss"] < best["val_loss"])) {
      best = line;
    }
  }
  ASSERT_LT(best["step"], 40) << "the last step is the best: the test tests nothing";
  EXPECT_EQ(Json::parse(result.out)["best_step"], best["step"]);

  const fs::path held_out = workshop.folder("held_out.txt");
  write_text(held_out, validation_text(text));
  const auto loss_of = [&](const fs::path& model) {
    const Result eval = run_program("eval --threads 1 --json --model " + quoted(model) +
                                    " --data " + quoted(held_out));
    EXPECT_EQ(eval.exit_code, 0) << eval.err;
    return Json::parse(eval.out)["loss"];
  };
  EXPECT_EQ(loss_of(run.folder), best["val_loss"]);
  EXPECT_EQ(loss_of(run.best()), best["val_loss"]);
  const Json last = loss_of(run.last());
  EXPECT_EQ(last, read_lines(run.metrics()).back()["val_loss"]);
  EXPECT_NE(last, best["val_loss"]);

  const auto own_loss = [&](const std::string& more) {
    const Result eval = run_program("eval --threads 1 --json --run " + quoted(run.folder) + more);
    EXPECT_EQ(eval.exit_code, 0) << eval.err;
    return Json::parse(eval.out)["loss"];
  };
  EXPECT_EQ(own_loss(""), best["val_loss"]);
  EXPECT_EQ(own_loss(" --model " + quoted(run.last())), last);
}

// Nothing of a run stays behind in the process.
TEST(RunsInOneProcess, LeaveTheBitsOfTwoProcesses) {
  Json recipe = kimi_recipe();
  const Workshop workshop(recipe);
  const RunPaths first = workshop.trained("first"),
                 second = workshop.trained("second", "--set train.seed=2");
  workshop.train_here("first here");
  recipe["train"]["seed"] = 2;
  workshop.set_recipe(recipe);
  workshop.train_here("second here");
  EXPECT_TRUE(same_results({workshop.folder("first here")}, first));
  EXPECT_TRUE(same_results({workshop.folder("second here")}, second));
  EXPECT_FALSE(same_results(first, second));
}

TEST(SentencePiece, TrainsResumesEvaluatesAndGenerates) {
  Json recipe = block_recipe();
  recipe["tokenizer"] = {{"kind", "sentencepiece"}, {"vocab_size", 400}};
  recipe["train"]["eval_tokens"] = 1000000;
  const std::string all = real_text(40000);
  const Workshop workshop(recipe, all);
  workshop.train_here("whole");
  const RunPaths whole{workshop.folder("whole")};
  disturb(workshop, "stopped", 5, SIGINT);
  const RunPaths stopped{workshop.folder("stopped")};

  // Another tokenizer would give other tokens for the same text.
  const fs::path tokenizer = stopped.last() / "tokenizer.model";
  const std::string good = read_file(tokenizer);
  const RunPaths other = workshop.trained("other", "--set tokenizer.vocab_size=390 train.steps=1");
  fs::copy_file(other.last() / "tokenizer.model", tokenizer, fs::copy_options::overwrite_existing);
  EXPECT_EQ(workshop.resume("stopped").exit_code, 1);
  write_text(tokenizer, good);

  const Result resumed = workshop.resume("stopped");
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_TRUE(same_results(stopped, whole));

  const std::string model = " --threads 1 --json --model " + quoted(stopped.folder);
  const fs::path held_out = workshop.folder("held_out.txt");
  write_text(held_out, validation_text(all));
  const Result eval = run_program("eval --data " + quoted(held_out) + model);
  ASSERT_EQ(eval.exit_code, 0) << eval.err;
  const Json loss = Json::parse(eval.out)["loss"];
  // The last of its evaluations was the best.
  EXPECT_EQ(loss, read_lines(whole.metrics()).back()["val_loss"]);
  EXPECT_LT(loss.get<double>(), std::log(400) - 0.2) << "it learned nothing";
  const Result text = run_program("generate --prompt 'The type' --max-tokens 8" + model);
  ASSERT_EQ(text.exit_code, 0) << text.err;
  EXPECT_GT(Json::parse(text.out)["tokens"].size(), 0u);
}

}  // namespace
}  // namespace attnres::testing::training_test
