#include "attnres/train/run_folder/run_logs.h"

#include <nlohmann/json.hpp>

namespace attnres {

RunLogs::RunLogs(const RunPaths& paths, const TrainingState& state, int sublayers)
    : metrics(paths.metrics(), state.metrics_bytes),
      probes(paths.probes(), state.probes_bytes),
      samples(paths.samples(), state.samples_bytes),
      events_(paths, sublayers) {}

void RunLogs::add_step(const Json& line, const std::vector<Json>& readings) {
  for (const Json& reading : readings) probes.append(reading);
  metrics.append(line);
  events_.add(line, readings);
}

void RunLogs::sync(TrainingState& state) {
  for (LineLog* log : {&metrics, &probes, &samples}) log->sync();
  state.metrics_bytes = metrics.bytes();
  state.probes_bytes = probes.bytes();
  state.samples_bytes = samples.bytes();
}

}  // namespace attnres
