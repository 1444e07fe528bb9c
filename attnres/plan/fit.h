// Why a layout does not fit a cluster's devices, and what would help: of what the program can do.
#pragma once

#include <string>

#include "attnres/plan/cluster.h"
#include "attnres/plan/device_memory.h"
#include "attnres/plan/layout.h"

namespace attnres {

enum class Shortage {
  none,
  standing,     // weights, gradients and moments alone are more than a device has
  activations,  // with activations, received copies or the update they are
};
Shortage shortage_of(const MemoryPlan& memory);

// Bytes of weights, gradients and moments of the largest sublayer (or the output), which no
// pipeline can divide, on each of the processes of a tensor group.
struct LargestSite {
  int site = 0;
  double bytes = 0;
};
LargestSite largest_site(const PlannedModel& model, int64_t tensor);

// A sentence or two that name the fullest device, what it lacks and what would help; empty where
// the layout fits.
std::string explain_shortage(const PlannedModel& model, const Layout& layout,
                             const MemoryPlan& memory, const Cluster& cluster);

}  // namespace attnres
