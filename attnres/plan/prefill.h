// Memory of the finished representations that a prompt keeps while it is read, N T d numbers
// (section 4.2 of arXiv 2603.15031, "Memory-efficient prefilling"): 15 GB for 128K tokens, 8 blocks
// and d = 7168 in bfloat16.
#pragma once

#include <cstdint>

#include "attnres/model/config.h"
#include "attnres/plan/layout.h"

namespace attnres {

struct PrefillMemory {
  int64_t context = 0;  // T
  int64_t chunk = 0;    // tokens that are read at once; T where the prompt is read whole
  int64_t devices = 1;  // P, over which tokens are split
  // The sealed tensors that stand before a sublayer, at most: N blocks, the token embedding as one
  // of them, since the last one is not finished.
  int64_t representations = 0;
  double numbers = 0;  // of a token: N d
  // Bytes, in the precision of the recipe's activations: of the whole prompt; on each of the
  // devices; and on each where the prompt is read in chunks, which leave nothing behind.
  double whole = 0, per_device = 0, per_device_chunked = 0;
};

// chunk 0: the whole prompt. Throws UsageError where context, chunk or devices are not positive.
PrefillMemory plan_prefill(const PlannedModel& model, int64_t context, int64_t chunk,
                           int64_t devices);

}  // namespace attnres
