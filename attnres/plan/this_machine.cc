#include "attnres/plan/this_machine.h"

#include <ATen/Parallel.h>

#include <future>
#include <vector>

#include "attnres/ops/matmul/provider.h"
#include "attnres/plan/plan.h"
#include "attnres/support/error.h"
#include "attnres/support/machine.h"
#include "attnres/train/estimate/estimate.h"
#include "attnres/train/estimate/training_cost.h"

namespace attnres {
namespace {

// About what a message of MPI takes between processes of one machine: it is short beside what a
// stage computes.
constexpr double kMessageSeconds = 10e-6;
// Read and written into the memory that both share, read and written out of it.
constexpr double kTouchesOfAMessage = 4;

}  // namespace

Cluster measure_this_machine(int64_t devices) {
  const Machine machine = describe_machine();
  require_usage(devices >= 1 && devices <= machine.cores,
                "--devices {}: expected 1 to {}, the processors that this process may use, since "
                "each device is a process of one thread",
                devices, machine.cores);
  const int threads = static_cast<int>(devices);
  const double share = 1 / static_cast<double>(devices);
  const double copy = share * measure_copy(threads) * 1e9;
  Cluster cluster = {
      .name = "this machine",
      .devices = devices,
      .devices_per_node = devices,
      .device = {.name = "1 thread of " + machine.cpu,
                 .memory = share * static_cast<double>(machine.memory),
                 .reserved = kLibraryBytes,
                 .bandwidth = copy,
                 .flops = {.float32 = share * measure_matmul(threads)}},
      .within_node = {.bandwidth = copy / kTouchesOfAMessage, .latency = kMessageSeconds}};
  if (processor().bfloat16) {
    cluster.device.flops.bfloat16 = share * measure_matmul(threads, at::kBFloat16);
  }
  return cluster;
}

Cluster fitted_to(double seconds, const PlannedModel& model, Cluster cluster) {
  Recipe alone = model.recipe;
  alone.parallel = {};
  const auto planned = [&](double efficiency) {
    cluster.device.efficiency = efficiency;
    return make_plan(model, layout_of(alone), cluster).time.seconds;
  };
  // Products take their time over the efficiency, all else the same.
  const double with_half = planned(0.5), with_one = planned(1);
  const double products = with_half - with_one;
  Device& device = cluster.device;
  if (seconds >= with_one) {
    device.efficiency = products / (products + seconds - with_one);
  } else {
    const double faster = with_one / seconds;
    device.bandwidth *= faster;
    device.flops.float32 *= faster;
    device.flops.bfloat16 *= faster;
  }
  return cluster;
}

double measure_step(const PlannedModel& model, int64_t devices) {
  std::vector<std::future<double>> steps;
  for (int64_t i = 0; i < devices; ++i) {
    steps.push_back(std::async(std::launch::async, [&] {
      at::set_num_threads(1);
      return time_steps(model.recipe, model.vocab_size).median;
    }));
  }
  double sum = 0;
  for (std::future<double>& step : steps) sum += step.get();
  return sum / static_cast<double>(devices);
}

}  // namespace attnres
