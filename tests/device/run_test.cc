// Whole runs on a device that is not the CPU: what they leave is the CPU's, and goes on there.
#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "attnres/pretrained/model_directory.h"
#include "attnres/support/compute_device.h"
#include "attnres/train/trainer.h"
#include "tests/device/near_json.h"
#include "tests/device/pretend_device.h"
#include "tests/text/test_files.h"
#include "tests/train/tiny_runs.h"

namespace attnres::testing::device_run_test {
namespace {

namespace fs = std::filesystem;

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
    expect_same_run(trained(std::string(name) + "-there", pretend_device(), recipe, 4),
                    trained(name, c10::kCPU, recipe, 4));
  }
}

TEST_F(DeviceRun, GoesOnElsewhere) {
  const RunPaths whole = trained("whole", c10::kCPU, block_recipe(), 8);
  trained("to-there", c10::kCPU, block_recipe(), 4);
  expect_same_run(trained("to-there", pretend_device(), block_recipe(), 8, /*resume=*/true), whole);
  trained("from-there", pretend_device(), block_recipe(), 4);
  expect_same_run(trained("from-there", c10::kCPU, block_recipe(), 8, /*resume=*/true), whole);
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
