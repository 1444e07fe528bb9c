// What training takes beside its model: parts of the estimates for one process (estimate.h) and for
// many (plan/).
#pragma once

#include <cstdint>
#include <vector>

#include "attnres/model/model_cost.h"
#include "attnres/parameters/parameters.h"
#include "attnres/train/recipe/recipe.h"

namespace attnres {

inline constexpr double kLibraryBytes = 160.0 * (1 << 20);  // libtorch, and what it keeps for
                                                            // its matrix products
// CUDA's context, and what its libraries keep for products. Not measured on a GPU yet.
inline constexpr double kGpuLibraryBytes = 512.0 * (1 << 20);
inline constexpr double kFragmentation = 1.05;  // of the heap, by tensors of changing sizes

// Traffic per number that sublayers keep, of one forward and backward pass: forward, backward and
// as a gradient, with temporaries. Measured, over widths of 64 to 512.
inline constexpr double kTouched = 24;
// How fast mixing moves its numbers, over copies, where that is not measured.
inline constexpr double kMixingOverCopies = 0.4;
// Traffic per parameter: the update reads and writes weights, gradients and moments.
inline constexpr double kTouchedByUpdate = 9;

// What a parameter's update takes.
struct UpdateCost {
  double gradient = 0;  // numbers
  double moments = 0;   // numbers that the optimizer keeps of it: two by AdamW, one by Muon
  double working = 0;   // numbers beside it while it is updated: Muon's, between steps
  double flops = 0;     // of Newton-Schulz
};

// Costs for a whole model's parameters, or a process's parts of all of them, in their order;
// nothing is kept of what no gradient moves, and of what is frozen. Muon works on whole matrices.
std::vector<UpdateCost> update_costs(const ParameterRegistry& parameters, int sublayers,
                                     const TrainConfig& train);

// Numbers that a forward pass of a token at these sites moves, as often as copies move as many in
// the same time; a backward moves twice as many. `mixing`: bytes a second of mixing over copies.
double moved_forward(const ModelCost& model, const SiteRange& sites = {},
                     double mixing = kMixingOverCopies);

// Numbers of the logits that are there at one time, of `tokens` tokens: those of a chunk of
// linear_cross_entropy, and their exponentials.
double logits_at_once(int64_t vocab_size, double tokens, c10::DeviceType device);

// Bytes that a whole model takes beside its weights between steps, by evaluation. A probe takes
// what a step of one window does, so no more than a step.
double evaluation_bytes(const ModelCost& model, int64_t vocab_size, const TrainConfig& train,
                        c10::DeviceType device);

}  // namespace attnres
