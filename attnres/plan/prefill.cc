#include "attnres/plan/prefill.h"

#include <algorithm>

#include "attnres/support/error.h"

namespace attnres {

PrefillMemory plan_prefill(const PlannedModel& model, int64_t context, int64_t chunk,
                           int64_t devices) {
  require_usage(context > 0 && chunk >= 0 && devices > 0,
                "prefill: expected a context, a chunk and devices of 1 or more, got {}, {} and {}",
                context, chunk, devices);
  PrefillMemory memory = {.context = context,
                          .chunk = chunk == 0 ? context : std::min(chunk, context),
                          .devices = devices};
  for (int site = 0; site < model.cost().sublayers(); ++site) {
    int64_t representations = 0;
    double numbers = 0;
    for (const PlannedTensor& tensor : model.cost().mixer().plan(site).sealed) {
      if (tensor.last_reader < site) continue;  // freed
      ++representations;
      numbers += static_cast<double>(tensor.numbers());
    }
    if (numbers <= memory.numbers) continue;
    memory.representations = representations;
    memory.numbers = numbers;
  }
  const auto bytes = [&](int64_t tokens) {
    return static_cast<double>(tokens) * memory.numbers * model.activation_bytes;
  };
  const auto share = [&](int64_t tokens) { return (tokens + devices - 1) / devices; };
  memory.whole = bytes(context);
  memory.per_device = bytes(share(context));
  memory.per_device_chunked = bytes(share(memory.chunk));
  return memory;
}

}  // namespace attnres
