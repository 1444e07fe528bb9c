// How evenly a run's sites choose among their sources, by its probes (train/step/probe.h).
#pragma once

#include <cstdint>
#include <map>

#include "attnres/report/run_data.h"

namespace attnres {

// In nats, the mean over the sites that choose among two sources or more, and the mean of
// ln(number of sources), which is what uniform weights would give; kNotMeasured where it is
// unknown.
struct DepthEntropy {
  double measured = kNotMeasured;
  double uniform = kNotMeasured;
};

// By step, of those at which all sites were measured. Empty of a mechanism without depth weights.
std::map<int64_t, DepthEntropy> depth_entropies(const RunData& run);

}  // namespace attnres
