#include "attnres/train/trainer.h"

#include <ATen/Parallel.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>

#include <cmath>
#include <memory>
#include <utility>

#include "attnres/pretrained/save_model.h"
#include "attnres/support/error.h"
#include "attnres/text/bytes.h"
#include "attnres/train/recipe/schedule.h"
#include "attnres/train/run_folder/checkpoint.h"
#include "attnres/train/step/training_step.h"
#include "attnres/train/text/run_text.h"
#include "tests/larger.h"
#include "tests/text/test_files.h"
#include "tests/train/event_records.h"
#include "tests/train/tiny_runs.h"

namespace attnres::testing::trainer_test {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class Trainer : public ::testing::Test {
 protected:
  Trainer() {
    write_text(base_ / "text.txt", real_text(20000));
    at::set_num_threads(1);
  }
  ~Trainer() override { at::set_num_threads(threads_); }

  TrainJob job(const std::string& name, const Json& train = Json::object(),
               const Json& model = Json::object()) const {
    Json recipe = tiny_recipe({{"type", "block_attn_res"}, {"block_size", 2}});
    recipe["train"]["steps"] = 8;
    recipe["train"]["checkpoint_every"] = 4;
    recipe["train"]["eval_every"] = 3;
    recipe["train"].update(train);
    recipe["model"].update(model);
    return {.recipe = parse_recipe(recipe), .data = {base_ / "text.txt"}, .out = base_ / name};
  }
  RunPaths trained(const std::string& name, const Json& train = Json::object(),
                   const Json& model = Json::object()) const {
    attnres::train(job(name, train, model));
    return {base_ / name};
  }

  const int threads_ = at::get_num_threads();
  const fs::path base_ = fresh_folder("runs");
};

// Sizes of the messages in a run's only event file.
std::vector<size_t> event_sizes(const RunPaths& run) {
  std::vector<size_t> sizes;
  for (const auto& entry : fs::directory_iterator(run.folder)) {
    if (!entry.path().filename().string().starts_with("events.out.tfevents.")) continue;
    for (const std::string& message : event_records(entry.path())) sizes.push_back(message.size());
  }
  return sizes;
}

TEST_F(Trainer, EqualSeedsGiveEqualBytesOnTwoThreads) {
  at::set_num_threads(2);
  EXPECT_TRUE(same_results(trained("a"), trained("b")));
}

TEST_F(Trainer, EqualSeedsGiveEqualBytes) {
  const RunPaths a = trained("a");
  EXPECT_TRUE(same_results(a, trained("b")));
  EXPECT_FALSE(same_results(a, trained("c", {{"seed", 2}})));
}

// Loss and gradient norm of every step.
std::vector<double> course(const RunPaths& run) {
  std::vector<double> values;
  for (const Json& line : read_lines(run.metrics())) {
    for (const char* key : {"loss", "grad_norm"}) values.push_back(line[key]);
  }
  return values;
}

double largest_relative_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    largest = larger(largest, std::abs(a[i] - b.at(i)) / std::abs(b[i]));
  }
  return largest;
}

// To the bit where a state feeds the next alone; where many sites read a source, its gradients are
// summed in another order.
TEST_F(Trainer, RecomputationChangesNothing) {
  for (const char* type : {"residual", "attn_res"}) {
    const Json model = {{"layers", 3}, {"depth_mixing", {{"type", type}}}};
    const std::string name = type;
    const RunPaths stored = trained(name, Json::object(), model);
    const RunPaths recomputed = trained(name + " recomputed", {{"recompute", true}}, model);
    EXPECT_LT(largest_relative_difference(course(recomputed), course(stored)), 1e-4) << type;
    if (name == "residual") {
      EXPECT_TRUE(same_results(recomputed, stored));
    }
  }
}

TEST_F(Trainer, AccumulationIsOneLargeBatch) {
  const std::vector<double> whole = course(trained("whole"));
  const std::vector<double> parts = course(trained("parts", {{"accumulate", 2}}));
  const std::vector<double> half = course(trained("half", {{"batch_size", 2}}));
  EXPECT_LT(largest_relative_difference(parts, whole), 1e-4);
  EXPECT_GT(largest_relative_difference(half, whole), 1e-2);
}

// One document has a byte whose scaled embedding is infinite.
TEST_F(Trainer, NamesTheRowOfTheDataWhoseNumbersAreNotFinite) {
  const fs::path texts = base_ / "texts", model = base_ / "large", own = base_ / "own.txt";
  for (int i = 0; i < 40; ++i) {
    const std::string last = i == 23 ? "marked\xff" : "same";
    // In the order of their names, and each in a row of its own.
    write_text(texts / fmt::format("{:02}", i), fmt::format("{:02} is a document, {}", i, last));
  }
  write_text(own, real_text(4000));
  for (const char* type : {"residual", "block_attn_res"}) {
    const Json overrides = {{"depth_mixing", {{"type", type}}}, {"embedding_scale", 2}};
    TrainJob begun = job(type, {{"steps", 20}, {"checkpoint_every", 1}, {"seed", 4}}, overrides);
    begun.recipe.data.packing = "documents";
    begun.data = {texts};
    begun.validation = {own};
    Transformer large(begun.recipe.model, /*vocab_size=*/256, /*seed=*/1);
    large.parameters().find(kEmbeddingSite, "token_embedding")->tensor.detach()[255].fill_(3e38);
    fs::remove_all(model);
    save_model_folder(model, large, ByteTokenizer(), /*context=*/32);
    begun.from = std::make_shared<ModelDirectory>(model);
    const std::string message = message_of<Diverged>([&] { attnres::train(begun); });
    EXPECT_THAT(message, Not(HasSubstr("-nan")));
    EXPECT_THAT(message, HasSubstr("Of the step's 4 rows 1 alone is not finite: row "));
    EXPECT_THAT(message, HasSubstr("of document 24, which begins \"23 is a docume"));
    const fs::path last = RunPaths{begun.out}.last();
    EXPECT_THAT(message, HasSubstr("attnres train --from " + last.string() +
                                   " --set train.seed=5 --out NEW --data WITHOUT_IT"));
    // It is the step that has that row, which going on meets again.
    const int64_t step = read_training_state(last).step + 1;
    const Json noted = {{"step", step}, {"error", message}};
    EXPECT_EQ(read_run_json({begun.out}).at("diverged"), noted);
    TrainObserver silent;
    const RunText text = read_run_text({{texts}, {own}}, begun.recipe, Json(),
                                       std::make_shared<ByteTokenizer>(), silent);
    const TrainBatches batches =
        batches_of(text.train, begun.recipe, vocabulary_of(ByteTokenizer()));
    for (int64_t row = 0; row < 4; ++row) {
      const bool is_named =
          message.find(fmt::format("finite: row {},", row + 1)) != std::string::npos;
      EXPECT_EQ(batches.batch(step, row, 1).inputs_BT.eq(255).any().item<bool>(), is_named) << row;
    }
    begun.from = nullptr;
    begun.resume = true;
    EXPECT_EQ(message_of<Diverged>([&] { attnres::train(begun); }), message);
    EXPECT_EQ(read_run_json({begun.out}).at("diverged"), noted);
  }
}

TEST_F(Trainer, SaysNoLongerThatItDivergedWhereItGoesOn) {
  const RunPaths run = trained("run");
  const std::string before = read_file(run.run_json());
  Json record = read_run_json(run);
  record["diverged"] = {{"step", 8}, {"error", "the loss is nan"}};
  attnres::write_text(run.run_json(), record.dump());
  TrainJob again = job("run");
  again.resume = true;
  attnres::train(again);
  EXPECT_EQ(read_file(run.run_json()), before);
}

struct Messages : TrainObserver {
  void on_message(std::string_view line) override { lines += fmt::format("{}\n", line); }
  std::string lines;
};

// What is said of a run of ten steps with these settings, and its rates.
std::pair<std::string, std::vector<double>> told(const TrainJob& job) {
  Messages messages;
  attnres::train(job, messages);
  std::vector<double> rates;
  for (const Json& line : read_lines(RunPaths{job.out}.metrics())) rates.push_back(line["lr"]);
  return {messages.lines, rates};
}

TEST_F(Trainer, WarnsWhereWarmUpAndDecayOverlap) {
  const auto with = [&](const std::string& name, int warmup, double decay) {
    return told(job(name, {{"steps", 10},
                           {"schedule", "wsd"},
                           {"warmup", warmup},
                           {"decay_fraction", decay},
                           {"learning_rate", 1e-3}}));
  };
  const auto [lines, rates] = with("jumps", 6, 0.8);
  EXPECT_THAT(lines, HasSubstr("train.warmup has 6 steps and the decay (train.decay_fraction) 8"));
  EXPECT_THAT(lines, HasSubstr(fmt::format("at once, from {:.1e} to {:.1e}", 1e-3, rates.at(6))));
  EXPECT_LT(rates.at(6), 0.7 * rates.at(5));
  const auto [fitting, without_jump] = with("fits", 6, 0.4);
  EXPECT_THAT(fitting, Not(HasSubstr("at once")));
  EXPECT_GT(without_jump.at(6), 0.7 * without_jump.at(5));
}

TEST_F(Trainer, WarnsWhereNoWeightWillMove) {
  const auto weights = [&](const std::string& name) {
    return read_file(RunPaths{base_ / name}.last() / "model.safetensors");
  };
  const auto first = [&](const TrainJob& job) {
    save_model_folder(base_ / "first", Transformer(job.recipe.model, 256, /*seed=*/1),
                      ByteTokenizer(), job.recipe.train.context);
    return read_file(base_ / "first/model.safetensors");
  };
  const TrainJob at_zero = job("zero", {{"learning_rate", 0}}),
                 frozen = job("frozen", {{"rates", {{"*", 0}}}}),
                 mostly = job("mostly", {{"rates", {{"*proj*", 0}}}});
  EXPECT_THAT(told(at_zero).first, HasSubstr("train.learning_rate is 0: no weight will move"));
  EXPECT_EQ(weights("zero"), first(at_zero));
  EXPECT_THAT(told(frozen).first, HasSubstr("train.rates are 0 for all weights: no weight"));
  EXPECT_EQ(weights("frozen"), first(frozen));
  EXPECT_THAT(told(mostly).first, Not(HasSubstr("no weight will move")));
  EXPECT_NE(weights("mostly"), first(mostly));
}

// Of a model that others made: all tokens that end a text, and how it is sampled.
TEST_F(Trainer, KeepsHowTheModelsTextsEndAndAreSampled) {
  const fs::path first = base_ / "first";
  save_model_folder(first, Transformer(job("").recipe.model, 256, /*seed=*/1), ByteTokenizer(),
                    /*context=*/32);
  Json config = read_json(first / "config.json");
  config["bos_token_id"] = 3;
  write_text(first / "config.json", config.dump());
  const std::string sampled = R"({"eos_token_id": [10, 12], "temperature": 0.25})";
  write_text(first / "generation_config.json", sampled);
  TrainJob begun = job("kept");
  begun.from = std::make_shared<ModelDirectory>(first);
  begun.recipe.train.steps = 4;
  attnres::train(begun);
  const RunPaths run{begun.out};
  const auto expect_kept = [&](const fs::path& folder) {
    EXPECT_EQ(read_json(folder / "config.json")["bos_token_id"], 3);
    EXPECT_EQ(read_json(folder / "config.json")["eos_token_id"], Json({0, 10, 12}));
    EXPECT_EQ(read_file(folder / "generation_config.json"), sampled);
  };
  expect_kept(run.last());
  expect_kept(run.best());
  begun.from.reset();
  begun.resume = true;
  begun.recipe.train.steps = 8;
  fs::remove_all(run.best());
  EXPECT_EQ(attnres::train(begun).steps, 8);
  expect_kept(run.last());
}

// Token ids that others made, as of a model with the tokenizer that made them.
TEST_F(Trainer, TrainsAModelWithoutATokenizerOnIds) {
  const fs::path whole = base_ / "whole", bare = base_ / "bare", ids = base_ / "ids.bin";
  std::string bytes;
  for (const char c : real_text(20000)) bytes += {c, '\0'};
  write_text(ids, bytes);
  for (const fs::path& folder : {whole, bare}) {
    save_model_folder(folder, Transformer(job("").recipe.model, 256, /*seed=*/1), ByteTokenizer(),
                      /*context=*/32);
  }
  for (const fs::path& file : tokenizer_files(bare)) fs::remove(file);
  write_text(bare / "tokenizer_of_others.json", "what is not read");
  const auto begin = [&](const std::string& name, const fs::path& from, const char* kind) {
    TrainJob begun = job(name);
    begun.recipe.tokenizer = {kind, 256};
    begun.from = std::make_shared<ModelDirectory>(from);
    begun.data = {ids};
    return begun;
  };
  attnres::train(begin("known", whole, "bytes"));
  TrainJob on_ids = begin("ids", bare, "ids");
  attnres::train(on_ids);
  const RunPaths run{on_ids.out};
  EXPECT_EQ(metrics_without_times(run), metrics_without_times({base_ / "known"}));
  EXPECT_EQ(read_file(run.best() / "tokenizer_of_others.json"), "what is not read");
  EXPECT_THROW(load_tokenizer(run.best()), UnreadTokenizer);
  EXPECT_THAT(read_lines(run.samples()).back()["prompt"].get<std::string>(),
              ::testing::MatchesRegex("([0-9]+ )*[0-9]+"));
  // It goes on, and others with it.
  on_ids.resume = true;
  on_ids.recipe.train.steps = 10;
  EXPECT_EQ(attnres::train(on_ids).steps, 10);
  TrainJob next = begin("next", run.best(), "ids");
  EXPECT_EQ(attnres::train(next).steps, 8);

  // Text needs a tokenizer, which may be named.
  TrainJob on_text = begin("text", bare, "bytes");
  on_text.data = {base_ / "text.txt"};
  EXPECT_THAT(message_of<Error>([&] { attnres::train(on_text); }), HasSubstr("--tokenizer"));
  on_text.tokenizer = whole;
  EXPECT_EQ(attnres::train(on_text).steps, 8);
  on_text.from = std::make_shared<ModelDirectory>(whole);
  on_text.out = base_ / "two tokenizers";
  EXPECT_THAT(message_of<UsageError>([&] { attnres::train(on_text); }),
              HasSubstr("--tokenizer cannot name another"));
}

TEST_F(Trainer, LogsWhatItDid) {
  const TrainJob made = job("run", {{"schedule", "wsd"}, {"warmup", 2}, {"decay_fraction", 0.5}});
  const TrainSummary summary = attnres::train(made);
  const RunPaths run{made.out};
  const std::vector<Json> lines = read_lines(run.metrics());
  ASSERT_EQ(lines.size(), 8u);
  double best = INFINITY;
  for (int64_t step = 1; step <= 8; ++step) {
    const Json& line = lines[step - 1];
    EXPECT_EQ(line["step"], step);
    EXPECT_EQ(line["tokens"], step * 4 * 32);
    EXPECT_EQ(line["lr"], learning_rate_at(made.recipe.train, step));
    EXPECT_GT(line["seconds"], 0);
    EXPECT_EQ(line.contains("val_loss"), step % 3 == 0 || step == 8) << step;
    if (line.contains("val_loss")) best = std::min(best, line["val_loss"].get<double>());
  }
  EXPECT_EQ(summary.steps, 8);
  EXPECT_EQ(summary.tokens, 8 * 4 * 32);
  EXPECT_EQ(summary.best_loss, best);
  EXPECT_EQ(summary.final_loss, lines.back()["val_loss"]);
  EXPECT_EQ(summary.folder, made.out);
  EXPECT_FALSE(summary.was_finished);

  // 5 sites with depth weights, 4 sublayers.
  EXPECT_EQ(read_lines(run.probes()).size(), 3u * (2 * 5 + 3 * 4));
  const std::vector<Json> samples = read_lines(run.samples());
  ASSERT_EQ(samples.size(), 2u);
  EXPECT_EQ(samples[0]["step"], 4);
  EXPECT_EQ(samples[0]["prompt"].get<std::string>().size(), 16u);

  const Json record = read_json(run.run_json());
  EXPECT_EQ(record["recipe"], recipe_to_json(made.recipe));
  EXPECT_EQ(record["data"]["train_tokens"], 19001);  // with the end of the document
  EXPECT_EQ(record["data"]["validation_tokens"], 1001);
}

TEST_F(Trainer, RunsOddSettings) {
  const std::vector<std::pair<Json, Json>> settings = {
      {{{"batch_size", 1}}, {{"layers", 1}}},
      {{{"context", 2}}, Json::object()},
      {{{"accumulate", 4}, {"recompute", true}}, {{"tie_embeddings", true}}},
      {{{"schedule", "wsd"}, {"warmup", 0}, {"decay_fraction", 0}}, {{"kv_heads", 1}}},
      {{{"warmup", 100}, {"clip", 0}}, {{"depth_mixing", {{"type", "attn_res"}}}}},
      {{{"eval_every", 100}, {"checkpoint_every", 100}, {"sample_tokens", 0}},
       {{"depth_mixing", {{"type", "block_attn_res"}, {"block_size", 4}}}}},
      {{{"eval_every", 1}, {"checkpoint_every", 1}, {"eval_tokens", 1}},
       {{"depth_mixing", {{"type", "block_attn_res"}, {"block_size", 1}}}}},
      {{{"steps", 1}}, {{"depth_mixing", {{"type", "residual"}}}}},
  };
  for (size_t i = 0; i < settings.size(); ++i) {
    const auto& [train, model] = settings[i];
    SCOPED_TRACE(train.dump() + model.dump());
    Json few_steps = {{"steps", 4}};
    few_steps.update(train);
    const TrainJob made = job(std::to_string(i), few_steps, model);
    const TrainSummary summary = attnres::train(made);
    EXPECT_NEAR(summary.final_loss, std::log(256), 0.8);
    EXPECT_EQ(summary.steps, made.recipe.train.steps);
    EXPECT_TRUE(fs::exists(RunPaths{made.out}.last() / "optimizer.safetensors"));
    EXPECT_TRUE(fs::exists(RunPaths{made.out}.best() / "model.safetensors"));
    // All of it was trained.
    const Transformer first(made.recipe.model, /*vocab_size=*/256, made.recipe.train.seed);
    const auto last = load_model(RunPaths{made.out}.last());
    for (size_t k = 0; k < first.parameters().all().size(); ++k) {
      const Parameter& p = first.parameters().all()[k];
      if (p.kind != ParameterKind::matrix && p.kind != ParameterKind::embedding) continue;
      EXPECT_FALSE(at::equal(p.tensor, last->parameters().all()[k].tensor)) << p.site << p.role;
    }
  }
}

TEST_F(Trainer, GoesOnWithAFinishedRunByDoingNothing) {
  const RunPaths run = trained("run");
  const auto before = contents(run.folder);
  TrainJob again = job("run");
  again.resume = true;
  const TrainSummary summary = attnres::train(again);
  EXPECT_TRUE(summary.was_finished);
  EXPECT_EQ(summary.steps, 8);
  EXPECT_EQ(summary.final_loss, read_lines(run.metrics()).back()["val_loss"]);
  EXPECT_EQ(contents(run.folder), before);
}

// As runs were recorded before a recipe had data keys and run.json a split. Of a single text, what
// was held out was the same.
TEST_F(Trainer, GoesOnWithARunOfAnEarlierVersion) {
  const auto drawn = [&](const char* name) {
    TrainJob begun = job(name);
    begun.recipe.data.order = "drawn";
    return begun;
  };
  const RunPaths whole{base_ / "whole"}, old{base_ / "old"};
  attnres::train(drawn("whole"));
  attnres::train(drawn("old"));
  fs::remove_all(old.checkpoints());
  Json record = read_json(old.run_json());
  record["recipe"].erase("data");
  record["data"].erase("split");
  record["data"].erase("least_validation_bytes");
  write_text(old.run_json(), record.dump());
  TrainJob again = drawn("old");
  again.resume = true;
  attnres::train(again);
  EXPECT_TRUE(same_results(old, whole));
  again.recipe.data.validation_fraction = 0.1;
  EXPECT_THAT(message_of<Error>([&] { attnres::train(again); }),
              HasSubstr("data.validation_fraction: 0.05 -> 0.1"));
}

TEST_F(Trainer, ValidatesOnTextOfItsOwn) {
  write_text(base_ / "own.txt", real_text(22000).substr(20000));
  TrainJob made = job("run");
  made.validation = {base_ / "own.txt"};
  attnres::train(made);
  const Json data = read_json(RunPaths{made.out}.run_json())["data"];
  EXPECT_EQ(data["train_tokens"], 20001);
  EXPECT_EQ(data["validation_tokens"], 2001);
  made.resume = true;
  EXPECT_TRUE(attnres::train(made).was_finished);
  made.validation.clear();
  EXPECT_THAT(message_of<Error>([&] { attnres::train(made); }),
              HasSubstr("data.split: \"given\" -> \"by_size\""));
}

// With a rate that is the same at every step, a run that was made longer is the run that was long
// from the beginning; with another it is not, since its first steps followed the shorter schedule.
TEST_F(Trainer, MakesAFinishedRunLonger) {
  for (const double final_fraction : {1.0, 0.1}) {
    const Json constant = {{"warmup", 0}, {"eval_every", 4}, {"final_fraction", final_fraction}};
    const auto with_steps = [&](int64_t steps) {
      Json train = constant;
      train["steps"] = steps;
      return train;
    };
    const RunPaths whole = trained(fmt::format("whole {}", final_fraction), with_steps(16));
    const std::string name = fmt::format("longer {}", final_fraction);
    const RunPaths longer = trained(name, with_steps(8));
    TrainJob more = job(name, with_steps(16));
    more.resume = true;
    EXPECT_FALSE(attnres::train(more).was_finished);
    EXPECT_EQ(same_results(longer, whole), final_fraction == 1);
    for (const Json& line : read_lines(longer.metrics())) {
      const int64_t step = line["step"];
      const int64_t steps = step <= 8 ? 8 : 16;
      EXPECT_EQ(line["lr"], learning_rate_at(job(name, with_steps(steps)).recipe.train, step));
    }
    const Json record = read_json(longer.run_json());
    EXPECT_EQ(record["recipe"]["train"]["steps"], 16);
    EXPECT_EQ(record["changes"], Json::parse(R"([{"step": 8, "train.steps": [8, 16]}])"));
    // From here on it is a run like any other.
    EXPECT_TRUE(attnres::train(more).was_finished);
    EXPECT_EQ(read_json(longer.run_json()), record);
  }
}

// What a run tells, and where it is stopped.
class Notes : public TrainObserver {
 public:
  explicit Notes(int64_t stop_after = 1000) : stop_after_(stop_after) {}

  void on_activity(std::string_view activity) override { activities.emplace_back(activity); }
  void on_message(std::string_view line) override { messages.emplace_back(line); }
  void on_begin(int64_t step, int64_t steps) override { begun = {step, steps}; }
  void on_step(const StepReport& report) override { reports.push_back(report); }
  bool should_stop() override { return reports.back().step >= stop_after_; }

  std::vector<std::string> activities, messages;
  std::pair<int64_t, int64_t> begun;
  std::vector<StepReport> reports;

 private:
  int64_t stop_after_;
};

class Fails : public Notes {
 public:
  void on_step(const StepReport& /*report*/) override { fail("no more"); }
};

TEST_F(Trainer, GoesOnByItselfSoOften) {
  const RunPaths whole = trained("whole");
  TrainJob made = job("run");
  made.restarts = 2;
  Notes stops(2);
  attnres::train(made, stops);
  EXPECT_FALSE(read_run_json(RunPaths{made.out}).contains("restarts"));
  made.resume = true;
  for (const char* times : {"restart 1 of 2 from step 2", "restart 2 of 2 from step 2"}) {
    Fails fails;
    EXPECT_EQ(message_of<Error>([&] { attnres::train(made, fails); }), "no more");
    EXPECT_THAT(fails.messages, Contains(times));
  }
  EXPECT_THAT(message_of<Error>([&] { attnres::train(made); }),
              HasSubstr("went on 2 times from step 2"));
  made.restarts = 3;
  Notes further(5), to_its_end;
  attnres::train(made, further);
  made.restarts = 1;
  attnres::train(made, to_its_end);
  EXPECT_THAT(to_its_end.messages, Contains("restart 1 of 1 from step 5"));
  EXPECT_TRUE(same_results(RunPaths{made.out}, whole));
  Notes finished;
  EXPECT_TRUE(attnres::train(made, finished).was_finished);
  EXPECT_THAT(finished.messages, Not(Contains(HasSubstr("restart"))));
}

TEST_F(Trainer, LeavesARunAloneThatDiverged) {
  const RunPaths run = trained("run", {{"steps", 4}});
  Json record = read_run_json(run);
  record["diverged"] = {{"step", 4}, {"error", "nan"}};
  write_text(run.run_json(), record.dump());
  TrainJob again = job("run");
  again.resume = true;
  again.restarts = 1;
  EXPECT_THAT(message_of<Error>([&] { attnres::train(again); }), HasSubstr("this run diverged"));
}

TEST_F(Trainer, TellsWhoeverStartedIt) {
  Notes notes;
  const TrainJob made = job("run");
  attnres::train(made, notes);
  EXPECT_THAT(notes.activities, ElementsAre("planning", "reading text", "tokenizing"));
  EXPECT_THAT(notes.messages, Contains(HasSubstr("19.0K tokens to train on")));
  EXPECT_EQ(notes.begun, std::pair(int64_t{0}, int64_t{8}));
  const std::vector<Json> lines = read_lines(RunPaths{made.out}.metrics());
  ASSERT_EQ(notes.reports.size(), lines.size());
  std::optional<double> validation_loss;
  for (size_t i = 0; i < lines.size(); ++i) {
    const StepReport& report = notes.reports[i];
    EXPECT_EQ(report.step, lines[i]["step"]);
    EXPECT_EQ(report.loss, lines[i]["loss"]);
    EXPECT_EQ(report.gradient_norm, lines[i]["grad_norm"]);
    EXPECT_EQ(report.learning_rate, lines[i]["lr"]);
    EXPECT_EQ(report.tokens_per_second, lines[i]["tokens_per_second"]);
    if (lines[i].contains("val_loss")) validation_loss = lines[i]["val_loss"];
    EXPECT_EQ(report.validation_loss, validation_loss);
    EXPECT_EQ(report.depth_weights.has_value(), validation_loss.has_value());
  }
}

TEST_F(Trainer, StopsWhereItIsToldAndGoesOnExactly) {
  const RunPaths whole = trained("whole");
  TrainJob made = job("stopped");
  for (const int64_t stop_after : {5, 6}) {
    Notes notes(stop_after);
    const TrainSummary summary = attnres::train(made, notes);
    EXPECT_TRUE(summary.was_stopped);
    EXPECT_EQ(summary.steps, stop_after);
    EXPECT_EQ(notes.begun.first, stop_after == 5 ? 0 : 5);
    EXPECT_EQ(read_training_state(RunPaths{made.out}.last()).step, stop_after);
    made.resume = true;
  }
  // Told so after the last step, it has finished.
  Notes notes(8);
  EXPECT_FALSE(attnres::train(made, notes).was_stopped);
  EXPECT_EQ(notes.reports.front().validation_loss, read_lines(whole.metrics())[5]["val_loss"]);
  EXPECT_TRUE(same_results({made.out}, whole));
  // Events too, each step once; they have the same sizes whatever a clock measured.
  EXPECT_EQ(event_sizes({made.out}), event_sizes(whole));
  EXPECT_EQ(event_sizes(whole).size(), 1u + 8);
}

TEST_F(Trainer, SaysThatItBeginsAnewWithoutACheckpoint) {
  const RunPaths run = trained("run");
  fs::remove_all(run.checkpoints());
  TrainJob again = job("run");
  again.resume = true;
  Notes notes;
  attnres::train(again, notes);
  EXPECT_EQ(notes.begun.first, 0);
  EXPECT_THAT(notes.messages, Contains(HasSubstr(run.last().string() +
                                                 " is not there: the run begins anew at step 1")));
}

TEST_F(Trainer, OverwritesNothingThatIsNotARuns) {
  const TrainJob made = job("mine");
  write_text(made.out / "metrics.jsonl", "precious");
  EXPECT_THAT(message_of<Error>([&] { attnres::train(made); }), HasSubstr("metrics.jsonl"));
  EXPECT_EQ(read_file(made.out / "metrics.jsonl"), "precious");
}

TEST_F(Trainer, LooksAtTheFolderBeforeTheText) {
  TrainJob made = job("run");
  made.data = {base_ / "no such text"};
  made.out = base_ / "text.txt" / "run";
  EXPECT_THAT(message_of<Error>([&] { attnres::train(made); }),
              HasSubstr("cannot make this folder"));
}

TEST_F(Trainer, LooksAtTheModelBeforeTheText) {
  TrainJob made = job("run");
  const fs::path model = base_ / "model";
  save_model_folder(model, Transformer(made.recipe.model, /*vocab_size=*/200, /*seed=*/1),
                    ByteTokenizer(), /*context=*/16);
  made.from = std::make_shared<ModelDirectory>(model);
  made.data = {base_ / "no such text"};
  EXPECT_THAT(message_of<Error>([&] { attnres::train(made); }),
              HasSubstr("the model has 200 token embeddings, but its tokenizer has 256 tokens"));
}

TEST_F(Trainer, RefusesWhatCannotGoTogether) {
  trained("run");
  EXPECT_THAT(message_of<Error>([&] { attnres::train(job("run")); }),
              HasSubstr("holds a finished run of 8 steps"));
  TrainJob changed = job("run", {{"seed", 9}});
  changed.resume = true;
  EXPECT_THAT(message_of<Error>([&] { attnres::train(changed); }), HasSubstr("train.seed: 1 -> 9"));
  EXPECT_THAT(message_of<Error>([&] {
                attnres::train(job("long", {{"context", 30000}}));
              }),
              HasSubstr("both parts need at least 30000"));
  EXPECT_FALSE(fs::exists(base_ / "long"));
}

}  // namespace
}  // namespace attnres::testing::trainer_test
