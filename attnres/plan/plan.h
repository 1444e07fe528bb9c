// What training a recipe on a cluster takes, device by device and step by step, worked out from
// shapes: of models and machines that need not be there.
#pragma once

#include <cstdint>
#include <string>

#include "attnres/plan/cluster.h"
#include "attnres/plan/device_memory.h"
#include "attnres/plan/layout.h"
#include "attnres/plan/prefill.h"
#include "attnres/plan/search.h"
#include "attnres/plan/step_time.h"
#include "attnres/plan/step_traffic.h"
#include "attnres/support/json.h"

namespace attnres {

// A prompt, for PrefillMemory.
struct Prompt {
  int64_t context = 0;  // 0: train.context
  int64_t chunk = 0;    // 0: read whole
};

struct Plan {
  Layout layout = {};
  int64_t parameters = 0;  // of the model
  double tokens = 0;       // of a step
  MemoryPlan memory = {};
  std::string shortage = {};  // explain_shortage; empty where it fits
  StepTraffic traffic = {};
  MixingTraffic mixing = {};
  StepTime time = {};
  PrefillMemory prefill = {};  // over the devices of a node
};

// Throws UsageError where the layout needs more devices than there are, or the cluster does not
// know the recipe's precision.
Plan make_plan(const PlannedModel& model, const Layout& layout, const Cluster& cluster,
               const Prompt& prompt = {});

// For programs; numbers as above, in bytes, seconds and FLOP/s.
Json plan_to_json(const Plan& plan, const Recipe& recipe, const Cluster& cluster);
Json search_to_json(const SearchResult& result);

}  // namespace attnres
