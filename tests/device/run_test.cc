// Whole runs on a device that is not the CPU: what they leave is the CPU's, and goes on there.
#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <functional>
#include <optional>
#include <string>

#include "attnres/pretrained/model_directory.h"
#include "attnres/support/compute_device.h"
#include "attnres/train/estimate/estimate.h"
#include "attnres/train/estimate/training_cost.h"
#include "attnres/train/step/training_step.h"
#include "attnres/train/trainer.h"
#include "tests/device/near_json.h"
#include "tests/device/pretend_device.h"
#include "tests/text/test_files.h"
#include "tests/train/tiny_runs.h"

namespace attnres::testing::device_run_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// Computes there while it lives.
struct OnDevice {
  explicit OnDevice(c10::Device device) { set_compute_device(device); }
  ~OnDevice() { set_compute_device(c10::kCPU); }
};

class DeviceRun : public ::testing::Test {
 protected:
  DeviceRun() { write_text(base_ / "text.txt", real_text(20000)); }

  RunPaths trained(const std::string& name, c10::Device device, const Json& recipe, int steps,
                   bool resume = false) const {
    const OnDevice on(device);
    TrainJob job{.recipe = parse_recipe(recipe), .data = {base_ / "text.txt"}, .out = base_ / name};
    job.recipe.train.steps = steps;
    job.recipe.train.warmup = 0;
    job.recipe.train.final_fraction = 1;
    job.recipe.train.eval_every = 4;
    job.recipe.train.checkpoint_every = 4;
    job.resume = resume;
    const HostReads reads;
    attnres::train(job);
    EXPECT_EQ(reads.count() > 0, device != c10::kCPU);
    return {base_ / name};
  }

  const fs::path base_ = fresh_folder("device_runs");
};

// What the host waits for in a run of so many steps, but for the looks of its last.
int64_t reads_of(const RunPaths& run, const Recipe& recipe, const fs::path& text, int steps) {
  const OnDevice on(pretend_device());
  TrainJob job{.recipe = recipe, .data = {text}, .out = run.folder};
  job.recipe.train.steps = steps;
  job.recipe.train.warmup = 0;
  const HostReads reads;
  attnres::train(job);
  return reads.count();
}

void expect_same_run(const RunPaths& run, const RunPaths& expected) {
  expect_near(Json(metrics_without_times(run)), Json(metrics_without_times(expected)), 1e-3);
  expect_near(Json(read_lines(run.probes())), Json(read_lines(expected.probes())), 1e-3);
  const auto model = ModelDirectory(run.last()).load(),
             there = ModelDirectory(expected.last()).load();
  for (size_t i = 0; i < model->parameters().all().size(); ++i) {
    const at::Tensor &a = model->parameters().all()[i].tensor,
                     &b = there->parameters().all()[i].tensor;
    EXPECT_LT((a - b).abs().max().item<float>(), 1e-3) << model->parameters().all()[i].role;
  }
}

TEST_F(DeviceRun, IsTheCpusRun) {
  for (const auto& [name, recipe] : {std::pair{"block", block_recipe()}, {"kimi", kimi_recipe()}}) {
    const RunPaths there = trained(std::string(name) + "-there", pretend_device(), recipe, 4),
                   here = trained(name, c10::kCPU, recipe, 4);
    expect_same_run(there, here);
    EXPECT_EQ(read_run_json(there).at("machine").at("device"), "pretend:0");
    EXPECT_EQ(read_run_json(here).at("machine").at("device"), "cpu");
  }
}

TEST_F(DeviceRun, GoesOnElsewhere) {
  const RunPaths whole = trained("whole", c10::kCPU, block_recipe(), 8);
  trained("to-there", c10::kCPU, block_recipe(), 4);
  expect_same_run(trained("to-there", pretend_device(), block_recipe(), 8, /*resume=*/true), whole);
  trained("from-there", pretend_device(), block_recipe(), 4);
  expect_same_run(trained("from-there", c10::kCPU, block_recipe(), 8, /*resume=*/true), whole);
}

// The loss, the norm and the experts' loads come in one copy a step.
TEST_F(DeviceRun, WaitsOnceAStep) {
  Recipe recipe = parse_recipe(kimi_recipe());
  recipe.train.eval_every = recipe.train.checkpoint_every = 100;
  const auto reads = [&](int steps) {
    return reads_of({base_ / fmt::format("steps-{}", steps)}, recipe, base_ / "text.txt", steps);
  };
  EXPECT_EQ(reads(3) - reads(2), 1);
}

std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// Before it begins, with what would fit.
TEST_F(DeviceRun, ThatDoesNotFitIsRefused) {
  const OnDevice on(pretend_device());
  TrainJob job{
      .recipe = parse_recipe(block_recipe()), .data = {base_ / "text.txt"}, .out = base_ / "large"};
  job.recipe.train.steps = 2;
  job.recipe.train.warmup = 0;
  job.recipe.train.batch_size = 256;  // so that a step takes more than a look at the text
  const int64_t needed =
      estimate(job.recipe, 256, {.matmul = 1, .copy = 1}, pretend_device()).bytes;
  const auto refusal = [&](int64_t bytes) {
    const LimitedMemory limited(bytes);
    return message_of([&] { attnres::train(job); });
  };
  EXPECT_EQ(refusal(pretend_bytes() + needed), "");
  job.out = base_ / "larger";
  EXPECT_THAT(refusal(needed - 1),
              AllOf(HasSubstr("pretend:0 (Pretend) has"), HasSubstr("train.accumulate=2"),
                    HasSubstr("--force begins all the same")));
  EXPECT_FALSE(fs::exists(job.out / "run.json"));
}

// The device has no more than it holds once a step is done.
class TakesMemory : public TrainObserver {
 public:
  explicit TakesMemory(int64_t step) : step_(step) {}
  void on_step(const StepReport& report) override {
    if (report.step == step_) limited_.emplace(pretend_bytes());
  }

 private:
  int64_t step_;
  std::optional<LimitedMemory> limited_;
};

TEST_F(DeviceRun, ThatRunsOutOfMemoryGoesOnFromItsLastCheckpoint) {
  const OnDevice on(pretend_device());
  TrainJob job{
      .recipe = parse_recipe(block_recipe()), .data = {base_ / "text.txt"}, .out = base_ / "short"};
  job.recipe.train.steps = 8;
  job.recipe.train.warmup = 0;
  job.recipe.train.eval_every = job.recipe.train.checkpoint_every = 4;
  const std::string message = message_of([&] {
    TakesMemory observer(/*step=*/6);
    attnres::train(job, observer);
  });
  EXPECT_THAT(message,
              AllOf(StartsWith("step 7: memory ran out on pretend:0 (Pretend): "),
                    HasSubstr(" more were asked for"), HasSubstr("last is whole, of step 4"),
                    HasSubstr("--resume --out"), HasSubstr("--device pretend:0 goes on"),
                    HasSubstr("--set train.accumulate=2 --out NEW"), Not(HasSubstr("\n"))));
  job.resume = true;
  attnres::train(job);
  job.resume = false;
  job.out = base_ / "whole";
  attnres::train(job);
  expect_same_run({base_ / "short"}, {base_ / "whole"});
}

// Every expert computes every token there. Compared with what the device holds at most in a step.
TEST_F(DeviceRun, NeedsMemoryForAllExperts) {
  const auto bytes = [&](int count, bool measured) {
    Json json = tiny_recipe({{"type", "residual"}});
    json["model"]["experts"] = {{"count", count}, {"chosen", 2}, {"width", 64}};
    json["train"]["batch_size"] = 32;
    const Recipe recipe = parse_recipe(json);
    if (!measured) {
      return static_cast<double>(
          estimate(recipe, 256, {.matmul = 1, .copy = 1}, pretend_device()).bytes);
    }
    const Transformer model(recipe.model, 256, /*seed=*/1, {}, pretend_device());
    Optimizer optimizer(model, recipe.train);
    TrainingStep step(model, optimizer, recipe.train);
    take_peak_pretend_bytes();
    const at::Tensor ids_BT = at::randint(256, {32, 32}, at::kLong);
    step.forward_backward({ids_BT, ids_BT});
    step.update(1e-3);
    return static_cast<double>(take_peak_pretend_bytes());
  };
  // With the library, which the pretend device has no memory for.
  const double told = bytes(16, false) - kGpuLibraryBytes, there = bytes(16, true);
  EXPECT_GT(told, 0.7 * there);
  EXPECT_LT(told, 1.3 * there);
  EXPECT_GT(there, 1.5 * bytes(4, true));  // they matter
}

TEST_F(DeviceRun, LoadsModelsThere) {
  const RunPaths run = trained("run", c10::kCPU, block_recipe(), 4);
  const OnDevice on(pretend_device());
  const auto model = ModelDirectory(run.last()).load();
  for (const Parameter& parameter : model->parameters().all()) {
    EXPECT_EQ(parameter.tensor.device(), pretend_device()) << parameter.role;
  }
}

}  // namespace
}  // namespace attnres::testing::device_run_test
