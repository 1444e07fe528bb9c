// What training a recipe will take, worked out before anything is allocated.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "attnres/train/recipe/recipe.h"

namespace attnres {

// How fast this machine is, with as many threads as training will use.
struct MachineSpeed {
  double matmul = 0;  // FLOP/s of a matrix product in the recipe's precision
  double copy = 0;    // bytes/s of measure_copy
  double mixing = 0;  // bytes/s of measure_mixing of the recipe's model; 0: not measured
};

struct Estimate {
  int64_t parameters = 0;       // exact
  int64_t bytes = 0;            // of memory, of the process or on a device, at their largest
  int64_t disk_bytes = 0;       // of the checkpoints, while one replaces another
  double flops_per_step = 0;    // of matrix products, two a multiply-add
  double seconds_per_step = 0;  // within 30 % on a machine that does nothing else
};

// Memory is counted: weights, and gradients and the optimizer's moments of those that are trained;
// what autograd keeps of each site (the mixer's sources, mixed and normalised inputs, q, k, v and
// attention output, the four hidden tensors of a feed-forward), or with recomputation what crosses
// the cuts and the largest span; gradient buffers of the sources; logits of a chunk; libtorch
// itself. Evaluation counts where it needs more than a step does; a probe never does. The text is
// not in it. On the CPU it is within 30 %. Of another device it is the memory there, with every
// expert computing every token: on an H100 in bfloat16 5 and 6 % above the peaks (records/gpu.md);
// what is composed there of tensor operations for want of a kernel may keep more.
//
// Time is the matrix products' FLOPs, those of Muon's updates included, over `speed.matmul`, plus
// what the mixer's operations read and write, counted (depth/mixing_cost.h), over `speed.mixing`,
// plus the traffic of everything else over `speed.copy`. It leaves out evaluation and checkpoints.
//
// `kept`: how weights that are not trained are stored (base_weights of run_folder/checkpoint.h).
Estimate estimate(const Recipe& recipe, int64_t vocab_size, const MachineSpeed& speed,
                  at::Device device = at::kCPU, const WeightFormats& kept = {});

// Seconds of so many steps and looks at the validation text (`eval_tokens` each, at a third of what
// training on them takes), and of the probes, samples and checkpoints beside them: 15 %.
double run_seconds(const TrainConfig& train, const Estimate& cost, double steps, double looks);
// The same for all the steps of a run, with its looks.
double run_seconds(const TrainConfig& train, const Estimate& cost);

// What there is to train with, in bytes; INT64_MAX where that cannot be found out.
struct Resources {
  int64_t memory = 0;       // of the machine, or what the process's cgroups allow; or of the device
  int64_t free_memory = 0;  // of it, at this moment
  int64_t free_disk = 0;    // for a run's checkpoints
  int processes = 1;        // of a run of several that share the memory
  at::Device device = at::kCPU;
  std::string device_name = {};  // of another than the CPU
};

// Of the device that this process computes on (compute_device). `checkpoints` need not be there
// yet; what lies there already is about to be replaced, and counts as free.
Resources find_resources(const std::filesystem::path& checkpoints);

// Throws Error when training needs more memory than there is at all, or than is free on a device
// that is not the CPU; or more disk than is free. Says both, which keys of the recipe to change,
// and what would fit. Of several processes those on this machine count, by what they hold alone:
// `attnres plan` knows more. Returns warnings: of the CPU's memory that is only taken at this
// moment, and with `force` of everything.
std::vector<std::string> check_resources(const Recipe& recipe, int64_t vocab_size,
                                         const Resources& there, bool force = false,
                                         const WeightFormats& kept = {});

// FLOP/s of matrix products of 1024 x 1024 in this dtype, the best of a few, on `threads` threads
// (then libtorch's number of threads is again what it was). About 0.1 s.
double measure_matmul(int threads, at::ScalarType dtype = at::kFloat);

// The same of a device that is not the CPU, and how fast it copies between two buffers, as
// measure_copy of support/machine.h but in bytes/s.
double measure_matmul(at::Device device, at::ScalarType dtype);
double measure_copy(at::Device device);

// Bytes/s that the mixer of such a model moves here, forward and backward, on `threads` threads:
// those of the forward as they are counted, three times, over the least time of a few rounds with
// sublayers that compute nothing. In float32; about 0.1 s.
double measure_mixing(const ModelConfig& model, int threads);

// With libtorch's number of threads, for training such a recipe.
MachineSpeed measure_speed(const Recipe& recipe);

// Seconds that steps take here.
struct StepTimes {
  double least = 0, median = 0, most = 0;
};

// Times seven steps of the real model on random tokens, after one that is not counted; fewer, but
// two or more, when all take longer than `seconds`. Allocates what training would. Steps with
// `accumulate` parts are timed by one part and the update. Calls `on_step` after each.
StepTimes time_steps(const Recipe& recipe, int64_t vocab_size, double seconds = 10,
                     const std::function<void()>& on_step = {});

}  // namespace attnres
