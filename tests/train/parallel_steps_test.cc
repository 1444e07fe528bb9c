#include "attnres/train/parallel/parallel_steps.h"

#include <ATen/Parallel.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "attnres/formats/tensor_files.h"
#include "attnres/pretrained/model_directory.h"
#include "attnres/pretrained/save_model.h"
#include "attnres/text/bytes.h"
#include "attnres/train/parallel/parallel_start.h"
#include "attnres/train/trainer.h"
#include "tests/parallel/thread_communicator.h"
#include "tests/text/test_files.h"
#include "tests/train/tensor_bytes.h"
#include "tests/train/tiny_runs.h"

namespace attnres::testing::parallel_steps_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

struct Layout {
  int data = 1, pipeline = 1, virtual_stages = 1, tensor = 1;
  std::string policy = "owned";
  bool shard_optimizer = false;

  int processes() const { return data * pipeline * tensor; }
  Json json() const {
    return {{"data", data},     {"pipeline", pipeline}, {"virtual", virtual_stages},
            {"tensor", tensor}, {"policy", policy},     {"shard_optimizer", shard_optimizer}};
  }
};

// Four parts a step, so that every layout has micro-batches.
Json recipe_in_parts(Json recipe, int64_t steps = 6) {
  recipe["train"].update(Json{{"steps", steps},
                              {"batch_size", 8},
                              {"accumulate", 4},
                              {"context", 16},
                              {"learning_rate", 1e-3},
                              {"clip", 0.5},
                              {"warmup", 2},
                              {"eval_every", 3},
                              {"checkpoint_every", 4},
                              {"sample_tokens", 4}});
  return recipe;
}

TrainJob job_of(Json recipe, const Layout& layout, const fs::path& text, const fs::path& out,
                bool resume = false) {
  recipe["parallel"] = layout.json();
  return {.recipe = parse_recipe(recipe), .data = {text}, .out = out, .resume = resume};
}

// Stops a run, or fails, after some steps.
class EndsAt : public TrainObserver {
 public:
  EndsAt(int64_t step, bool fails) : step_(step), fails_(fails) {}
  void on_step(const StepReport& report) override {
    stops_ = report.step >= step_;
    if (stops_ && fails_) fail("no more");
  }
  bool should_stop() override { return stops_; }

 private:
  int64_t step_;
  bool fails_, stops_ = false;
};

// As processes would, each on a thread.
void train_in(const Layout& layout, const TrainJob& job, TrainObserver& observer) {
  at::set_num_threads(1);
  if (layout.processes() == 1) {
    train(job, observer);
    return;
  }
  run_on_threads(layout.processes(), [&](Communicator& world) {
    at::set_num_threads(1);
    if (world.rank() == 0) {
      train(job, observer, world);
    } else {
      follow_training(job, world);
    }
  });
}
void train_in(const Layout& layout, const TrainJob& job) {
  TrainObserver silent;
  train_in(layout, job, silent);
}

// The largest relative difference of losses, gradient norms and validation losses of two runs.
double largest_difference(const fs::path& a, const fs::path& b) {
  const auto lines = read_lines(RunPaths{a}.metrics()), others = read_lines(RunPaths{b}.metrics());
  EXPECT_EQ(lines.size(), others.size());
  double largest = 0;
  for (size_t i = 0; i < std::min(lines.size(), others.size()); ++i) {
    for (const char* key :
         {"tokens", "loss", "grad_norm", "val_loss", "expert_load_max", "expert_load_min"}) {
      EXPECT_EQ(lines[i].contains(key), others[i].contains(key)) << key;
      if (!lines[i].contains(key) || !others[i].contains(key)) continue;
      const double x = lines[i][key], y = others[i][key];
      largest = std::max(largest, std::abs(x / y - 1));
    }
  }
  return largest;
}

// What probes have read, by step, site and name.
std::map<std::string, std::vector<double>> readings(const fs::path& run) {
  std::map<std::string, std::vector<double>> readings;
  for (const Json& line : read_lines(RunPaths{run}.probes())) {
    const Json& value = line["value"];
    const std::string key =
        fmt::format("{} {} {}", line["step"].dump(), line["site"].dump(), line["name"].dump());
    const bool is_new =
        readings
            .emplace(key, value.is_array() ? value.get<std::vector<double>>()
                                           : std::vector<double>{value.get<double>()})
            .second;
    EXPECT_TRUE(is_new) << key;
  }
  return readings;
}

// The largest difference of two runs' readings, relative where they are more than 1.
double largest_difference_of_readings(const fs::path& a, const fs::path& b) {
  const auto here = readings(a), there = readings(b);
  EXPECT_EQ(here.size(), there.size());
  EXPECT_FALSE(here.empty());
  double largest = 0;
  for (const auto& [key, values] : here) {
    if (!there.contains(key)) {
      ADD_FAILURE() << key;
      continue;
    }
    const std::vector<double>& others = there.at(key);
    EXPECT_EQ(values.size(), others.size()) << key;
    for (size_t i = 0; i < std::min(values.size(), others.size()); ++i) {
      largest = std::max(largest, std::abs(values[i] - others[i]) / std::max(1.0, others[i]));
    }
  }
  return largest;
}

class ParallelTraining : public ::testing::Test {
 protected:
  ParallelTraining() { write_text(text(), real_text(30000)); }
  ~ParallelTraining() override { at::set_num_threads(threads_); }

  fs::path text() const { return base_ / "text.txt"; }
  fs::path out(const std::string& name) const { return base_ / name; }

 private:
  const int threads_ = at::get_num_threads();
  const fs::path base_ = fresh_folder("runs");
};

TEST_F(ParallelTraining, IsThatOfOneProcess) {
  Json tied = recipe_in_parts(block_recipe());
  tied["model"]["tie_embeddings"] = true;
  const std::vector<std::pair<std::string, Json>> recipes = {
      {"block", recipe_in_parts(block_recipe())},
      {"tied", tied},
      {"kimi", recipe_in_parts(kimi_recipe())}};
  const std::vector<std::pair<std::string, Layout>> layouts = {
      {"data", {.data = 2}},
      {"pipeline", {.pipeline = 2, .virtual_stages = 2}},
      {"both", {.data = 2, .pipeline = 2, .policy = "report"}},
      {"sharded", {.data = 2, .pipeline = 2, .shard_optimizer = true}},
      {"tensor", {.tensor = 2}},
      {"all", {.data = 2, .pipeline = 2, .tensor = 2, .shard_optimizer = true}}};
  for (const auto& [name, recipe] : recipes) {
    train_in({}, job_of(recipe, {}, text(), out(name)));
    for (const auto& [kind, layout] : layouts) {
      const fs::path run = out(fmt::format("{}-{}", name, kind));
      train_in(layout, job_of(recipe, layout, text(), run));
      EXPECT_LT(largest_difference(run, out(name)), 1e-4) << name << ", " << kind;
      EXPECT_LT(largest_difference_of_readings(run, out(name)), 1e-4) << name << ", " << kind;
      const auto samples = read_lines(RunPaths{run}.samples());
      EXPECT_EQ(samples, read_lines(RunPaths{out(name)}.samples())) << name << ", " << kind;
      EXPECT_EQ(samples.size(), 2u);
    }
  }
  // Negative control: what decides the steps is seen.
  Json other = recipes[0].second;
  other["train"]["clip"] = 5.0;
  train_in({}, job_of(other, {}, text(), out("other")));
  EXPECT_GT(largest_difference(out("other"), out("block")), 1e-4);
  EXPECT_GT(largest_difference_of_readings(out("other"), out("block")), 1e-4);
}

// Rows that documents do not fill: what fills them is counted by no process.
TEST_F(ParallelTraining, CountsNothingThatFillsUpRows) {
  const std::string text_of_all = real_text(12000);
  const fs::path texts = out("texts");
  fs::create_directories(texts);
  for (size_t begin = 0, i = 0; begin < text_of_all.size(); ++i) {
    const size_t length = 5 + i % 9;
    write_text(texts / fmt::format("{:05}.txt", i), text_of_all.substr(begin, length));
    begin += length;
  }
  Json recipe = recipe_in_parts(kimi_recipe());
  recipe["data"] = {{"packing", "documents"}};
  train_in({}, job_of(recipe, {}, texts, out("alone")));
  const Json last = read_lines(RunPaths{out("alone")}.metrics()).back();
  EXPECT_LT(last.at("tokens"), 6 * 8 * 16 * 0.9);
  EXPECT_EQ(last.at("tokens"), read_training_state(RunPaths{out("alone")}.last()).tokens);
  for (const Layout& layout :
       {Layout{.data = 2}, Layout{.pipeline = 2, .tensor = 2}, Layout{.data = 2, .tensor = 2}}) {
    const fs::path run = out(fmt::format("{} {} {}", layout.data, layout.pipeline, layout.tensor));
    train_in(layout, job_of(recipe, layout, texts, run));
    EXPECT_LT(largest_difference(run, out("alone")), 1e-4);
  }
}

// As one process does, but for the document.
TEST_F(ParallelTraining, NamesTheRowsThatAreNotFinite) {
  const fs::path large = out("large");
  Json recipe = recipe_in_parts(block_recipe(), 60);
  recipe["model"]["embedding_scale"] = 2;  // so that one is infinite
  {
    Transformer model(parse_recipe(recipe).model, /*vocab_size=*/256, /*seed=*/1);
    model.parameters().find(kEmbeddingSite, "token_embedding")->tensor.detach()[255].fill_(3e38);
    save_model_folder(large, model, ByteTokenizer(), /*context=*/16);
  }
  std::string marked = real_text(4000);
  marked[700] = '\xff';
  const fs::path data = out("marked.txt");
  write_text(data, marked);
  const auto message = [&](const std::string& name, const Layout& layout) {
    TrainJob job = job_of(recipe, layout, data, out(name));
    job.validation = {text()};
    job.from = std::make_shared<ModelDirectory>(large);
    return message_of<Error>([&] { train_in(layout, job); });
  };
  // The row's tokens among them.
  const auto rows_of = [](const std::string& all) {
    const size_t begin = all.find("Of the step's"), end = all.find(", of document");
    return begin == std::string::npos ? "none" : all.substr(begin, end - begin);
  };
  const std::string rows = rows_of(message("alone", {}));
  EXPECT_THAT(rows, HasSubstr("8 rows 1 alone is not finite: row "));
  EXPECT_EQ(rows_of(message("data", {.data = 2})), rows);
  EXPECT_EQ(rows_of(message("all", {.data = 2, .pipeline = 2, .tensor = 2})), rows);
}

// As published ones are: a few embeddings have no token.
TEST_F(ParallelTraining, BeginsWithAModelOfMoreEmbeddingsThanTokens) {
  const Json recipe = recipe_in_parts(block_recipe());
  const fs::path padded = out("padded");
  save_model_folder(padded, Transformer(parse_recipe(recipe).model, /*vocab_size=*/300, /*seed=*/1),
                    ByteTokenizer(), /*context=*/16);
  const auto train_from = [&](const std::string& name, const Layout& layout, int64_t steps,
                              bool resume = false) {
    TrainJob job =
        job_of(recipe_in_parts(block_recipe(), steps), layout, text(), out(name), resume);
    if (!resume) job.from = std::make_shared<ModelDirectory>(padded);
    train_in(layout, job);
  };
  train_from("alone", {}, 6);
  train_from("pipeline", {.pipeline = 2}, 6);
  EXPECT_LT(largest_difference(out("pipeline"), out("alone")), 1e-4);
  train_from("pipeline", {.pipeline = 2}, 8, /*resume=*/true);
  EXPECT_EQ(load_model(RunPaths{out("pipeline")}.last())->vocab_size(), 300);
}

// Checkpoints are read by any layout, whichever wrote them.
TEST_F(ParallelTraining, GoesOnInAnotherLayout) {
  const Json recipe = recipe_in_parts(kimi_recipe(), 12);
  train_in({}, job_of(recipe, {}, text(), out("whole")));
  const std::vector<Layout> layouts = {{.pipeline = 2, .virtual_stages = 2, .tensor = 2},
                                       {.data = 2, .shard_optimizer = true},
                                       {},
                                       {.data = 2, .tensor = 2, .shard_optimizer = true}};
  const fs::path run = out("pieces");
  for (size_t i = 0; i < layouts.size(); ++i) {
    EndsAt stop(static_cast<int64_t>(3 * (i + 1)), /*fails=*/false);
    train_in(layouts[i], job_of(recipe, layouts[i], text(), run, /*resume=*/i > 0), stop);
  }
  EXPECT_LT(largest_difference(run, out("whole")), 1e-3);
  EXPECT_EQ(read_run_json(RunPaths{run}).at("changes").size(), 3u);
}

// Two parts of a gradient have one sum in whatever order they come: the same bits.
TEST_F(ParallelTraining, IsTheSameWithAShardedOptimizer) {
  for (const char* optimizer : {"adamw", "muon"}) {
    Json recipe = recipe_in_parts(block_recipe());
    recipe["train"]["optimizer"] = optimizer;
    recipe["train"]["clip"] = 0;
    const fs::path whole = out(optimizer), sharded = out(std::string(optimizer) + "-sharded");
    train_in({.data = 2}, job_of(recipe, {.data = 2}, text(), whole));
    const Layout layout = {.data = 2, .shard_optimizer = true};
    train_in(layout, job_of(recipe, layout, text(), sharded));
    for (const char* set : {"model", "optimizer"}) {
      const TensorFiles a(RunPaths{whole}.last(), set), b(RunPaths{sharded}.last(), set);
      ASSERT_EQ(a.names(), b.names());
      for (const std::string& name : a.names()) {
        EXPECT_TRUE(at::equal(a.read(name), b.read(name))) << optimizer << ", " << name;
      }
    }
  }
}

// With the weights of a run that several processes saved, and a part of them frozen.
TEST_F(ParallelTraining, BeginsWithAShardedModel) {
  const Layout layout = {.data = 2, .pipeline = 2};
  train_in(layout, job_of(recipe_in_parts(block_recipe()), layout, text(), out("first")));
  Json recipe = recipe_in_parts(block_recipe());
  recipe["train"]["rates"] = {{"model.layers.0.*", 0.0}};
  const auto run_from = [&](const std::string& name, const Layout& of_run) {
    TrainJob job = job_of(recipe, of_run, text(), out(name));
    job.from = std::make_shared<ModelDirectory>(RunPaths{out("first")}.best());
    train_in(of_run, job);
  };
  run_from("alone", {});
  const Layout other = {.pipeline = 2, .virtual_stages = 2};
  run_from("many", other);
  run_from("shared", {.tensor = 2});
  EXPECT_LT(largest_difference(out("many"), out("alone")), 1e-4);
  EXPECT_LT(largest_difference(out("shared"), out("alone")), 1e-4);
  EXPECT_EQ(read_run_json(RunPaths{out("many")})["from"],
            read_run_json(RunPaths{out("alone")})["from"]);
  const auto before = load_model(RunPaths{out("first")}.best()),
             after = load_model(RunPaths{out("many")}.last());
  const auto same = [&](int site, const char* role) {
    return at::equal(before->parameters().find(site, role)->tensor,
                     after->parameters().find(site, role)->tensor);
  };
  EXPECT_TRUE(same(1, "up_proj"));
  EXPECT_FALSE(same(3, "up_proj"));
}

// Weights and moments of a whole model are nowhere together, neither while it trains, evaluates,
// probes and samples nor while checkpoints are written and read.
TEST_F(ParallelTraining, HasTheWholeModelNowhere) {
  Json recipe = recipe_in_parts(block_recipe());
  recipe["model"].update({{"layers", 8}, {"width", 64}, {"ffn_width", 512}});
  const auto peaks = [&](const Layout& layout, bool resume) {
    recipe["train"]["steps"] = resume ? 8 : 6;
    const TrainJob job = job_of(recipe, layout, text(), out("run"), resume);
    std::vector<int64_t> peaks(layout.processes());
    run_on_threads(layout.processes(), [&](Communicator& world) {
      at::set_num_threads(1);
      const TensorBytesOfThread counted;
      TrainObserver silent;
      if (world.rank() == 0) {
        train(job, silent, world);
      } else {
        follow_training(job, world);
      }
      peaks[world.rank()] = counted.peak();
    });
    return peaks;
  };
  const Transformer shapes(parse_recipe(recipe).model, 256, /*seed=*/std::nullopt, at::kFloat,
                           at::kMeta);
  const int64_t whole = 3 * 4 * shapes.parameters().count();
  for (const bool resume : {false, true}) {
    for (const int64_t peak : peaks({.pipeline = 4}, resume)) EXPECT_LT(peak, whole * 2 / 3);
  }
  // Negative control: replicas have one each.
  for (const int64_t peak : peaks({.data = 2}, true)) EXPECT_GT(peak, whole * 9 / 10);
}

TEST_F(ParallelTraining, RefusesRanksThatDoNotGoTogether) {
  const Json recipe = recipe_in_parts(block_recipe());
  const Layout layout = {.data = 2};
  const auto start = [&](const TrainJob& leader, const TrainJob& follower, int processes) {
    return message_of<Error>([&] {
      run_on_threads(processes, [&](Communicator& world) {
        TrainObserver silent;
        if (world.rank() == 0) {
          train(leader, silent, world);
        } else {
          follow_training(follower, world);
        }
      });
    });
  };
  const TrainJob job = job_of(recipe, layout, text(), out("run"));
  TrainJob other = job;
  other.recipe.train.learning_rate = 2e-3;
  EXPECT_THAT(start(job, other, 2),
              HasSubstr("rank 1: recipe.train.learning_rate: 0.001 -> 0.002"));
  other = job;
  other.recipe.parallel.timeout = 5;
  EXPECT_THAT(start(job, other, 2), HasSubstr("rank 1: recipe.parallel.timeout: 600.0 -> 5.0"));
  other = job;
  other.data = {"another.txt"};
  EXPECT_THAT(start(job, other, 2), HasSubstr("another.txt"));
  EXPECT_THAT(start(job, job, 3), HasSubstr("2 processes, but 3 were started"));
  EXPECT_FALSE(fs::exists(out("run") / "run.json"));
  EXPECT_THAT(message_of<Error>([&] { train(job); }), HasSubstr("-n 2 attnres train"));
}

// The first three steps are shown: every forward and backward of every rank once, one at a time.
TEST_F(ParallelTraining, ShowsWhatRanksDo) {
  const Layout layout = {.data = 2, .pipeline = 2, .virtual_stages = 2};
  TrainJob job = job_of(recipe_in_parts(block_recipe(), 4), layout, text(), out("run"));
  job.trace = out("trace.json");
  train_in(layout, job);
  std::map<std::pair<int, std::string>, int> counts;
  std::map<int, double> end_of_last;
  const Json trace = read_json(job.trace);
  for (const Json& event : trace.at("traceEvents")) {
    if (event.at("ph") != "X") continue;
    const int rank = event.at("pid");
    const std::string kind = event.at("cat");
    ++counts[{rank, kind}];
    if (kind != "forward" && kind != "backward") continue;
    const double begin = event.at("ts"), duration = event.at("dur");
    EXPECT_GE(begin, end_of_last[rank] - 0.2);  // rounded
    end_of_last[rank] = begin + duration;
  }
  for (int rank = 0; rank < 4; ++rank) {
    // Two micro-batches of a replica through two stages.
    EXPECT_EQ((counts[{rank, "forward"}]), kTracedSteps * 2 * 2);
    EXPECT_EQ((counts[{rank, "backward"}]), kTracedSteps * 2 * 2);
    EXPECT_EQ((counts[{rank, "update"}]), kTracedSteps);
    EXPECT_GT((counts[{rank, "send"}]), 0);
    EXPECT_GT((counts[{rank, "wait"}]), 0);
  }
}

// Of one process torch's operations: three steps after the first, each with two calls of AdamW,
// with decay and without.
TEST_F(ParallelTraining, ShowsWhatOneProcessComputes) {
  TrainJob job = job_of(recipe_in_parts(block_recipe()), {}, text(), out("alone"));
  job.trace = out("trace.json");
  ASSERT_GT(job.recipe.train.steps, 4);
  train(job);
  std::map<std::string, int> counts;
  const Json trace = read_json(job.trace);
  for (const Json& event : trace.at("traceEvents")) {
    if (event.value("ph", "") == "X") ++counts[event.at("name")];
  }
  EXPECT_EQ(counts["aten::_fused_adamw_"], 3 * 2);
  EXPECT_GE(counts["attnres::linear_cross_entropy_fused"], 3);
  job.trace = out("nowhere") / "trace.json";
  job.out = out("again");
  EXPECT_THROW(train(job), Error);
}

// A rank that cannot go on ends the others, and the last checkpoint stands.
TEST_F(ParallelTraining, EndsWithTheRankThatFails) {
  const Layout layout = {.pipeline = 2};
  const TrainJob job = job_of(recipe_in_parts(block_recipe()), layout, text(), out("run"));
  EndsAt failure(5, /*fails=*/true);
  EXPECT_EQ(message_of<Error>([&] { train_in(layout, job, failure); }), "no more");
  EXPECT_EQ(read_training_state(RunPaths{out("run")}.last()).step, 4);
}

}  // namespace
}  // namespace attnres::testing::parallel_steps_test
