// Which layouts of a recipe are fastest on a cluster: data x pipeline x virtual x tensor x policy x
// recompute.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "attnres/plan/layout.h"
#include "attnres/plan/step_time.h"

namespace attnres {

struct FoundLayout {
  Layout layout = {};  // with the fastest policy that fits
  StepTime time = {};
  double fullest = 0;  // bytes of the device that needs most
  // Seconds a step under naive, report and owned; infinite where that does not fit.
  double seconds_by_policy[3] = {};
};

struct SearchResult {
  // The fastest that fit, best first; of equally fast ones those with fewer processes first.
  std::vector<FoundLayout> best = {};
  int64_t candidates = 0;  // data x pipeline x virtual x tensor x recompute
  // The layout that does not fit whose fullest device needs least, and explain_shortage of it;
  // empty where all of them fit.
  Layout nearest = {};
  double nearest_fullest = 0;  // bytes
  std::string why_not = {};
};

// The recipe's train.accumulate, and so the size of a micro-batch, stays as it is. Of a pipeline of
// P ranks there are as many replicas as the devices, and the parts of a step, allow; virtual stages
// are 2^k or 3 x 2^k; 2^k processes of a node share every layer. Candidates are taken up in the
// order of the time that the busiest rank computes, and the rest is left where no better one can
// follow.
SearchResult search_layouts(const PlannedModel& model, const Cluster& cluster, size_t most = 8);

}  // namespace attnres
