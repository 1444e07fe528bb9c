// What training a recipe will take, worked out before anything is allocated.
#pragma once

#include <cstdint>

#include "attnres/train/recipe.h"

namespace attnres {

// How fast this machine is, with as many threads as training will use.
struct MachineSpeed {
  double matmul = 0;  // FLOP/s of a float32 matrix product
  double copy = 0;    // bytes/s of measure_copy
};

struct Estimate {
  int64_t parameters = 0;       // exact
  int64_t bytes = 0;            // resident memory of the process at its largest, within 30 %
  double seconds_per_step = 0;  // within 30 % on a machine that does nothing else
};

// Memory is counted, in float32: weights, gradients and the optimizer's moments; what autograd
// keeps of each site (the mixer's sources, mixed and normalised inputs, q, k, v and attention
// output, the four hidden tensors of a feed-forward), or with recomputation what crosses the cuts
// and the largest span; gradient buffers of the sources; logits of a chunk; libtorch itself.
// Evaluation and probes count where they need more than a step does. The text is not in it.
//
// Time is the matrix products' FLOPs, those of Muon's updates included, over `speed.matmul` plus
// the traffic of everything else over `speed.copy`. It leaves out evaluation and checkpoints.
Estimate estimate(const Recipe& recipe, int64_t vocab_size, const MachineSpeed& speed);

// Throws Error when the estimate exceeds the memory that is available: says both, and which keys of
// the recipe to change.
void require_memory(const Recipe& recipe, int64_t vocab_size);

// FLOP/s of float32 matrix products of 1024 x 1024, the best of a few, on `threads` threads (then
// libtorch's number of threads is again what it was). About 0.1 s.
double measure_matmul(int threads);

// With libtorch's number of threads.
MachineSpeed measure_speed();

// Seconds a step takes here: the median of seven steps of the real model on random tokens, after
// one that is not counted; of fewer, but two or more, when all take longer than 10 s. Allocates
// what training would. Steps with `accumulate` parts are timed by one part and the update.
double time_step(const Recipe& recipe, int64_t vocab_size);

}  // namespace attnres
