#include "attnres/train/run_logs.h"

namespace attnres {

RunLogs::RunLogs(const RunPaths& paths, const TrainingState& state)
    : metrics(paths.metrics(), state.metrics_bytes),
      probes(paths.probes(), state.probes_bytes),
      samples(paths.samples(), state.samples_bytes) {}

void RunLogs::sync(TrainingState& state) {
  for (LineLog* log : {&metrics, &probes, &samples}) log->sync();
  state.metrics_bytes = metrics.bytes();
  state.probes_bytes = probes.bytes();
  state.samples_bytes = samples.bytes();
}

}  // namespace attnres
