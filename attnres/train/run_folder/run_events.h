// What TensorBoard shows of a run: its steps and probes as scalars (event_file.h), in the file
// events.out.tfevents.START.attnres of the run folder, START being when the run began, in seconds
// since 1970.
//
//   loss/train, loss/validation         nats per token
//   training/learning_rate, training/gradient_norm, training/tokens_per_second
//   depth_entropy/..., state_rms/..., output_rms/..., gradient_rms/...   by site (probe.h):
//                                       "03 feed-forward 2"
//
// The file is made of metrics.jsonl and probes.jsonl. A run that goes on makes it anew from what it
// keeps of them, so that no step is lost or doubled.
#pragma once

#include <vector>

#include "attnres/support/json.h"
#include "attnres/train/run_folder/event_file.h"
#include "attnres/train/run_folder/run_folder.h"

namespace attnres {

class RunEvents {
 public:
  // Writes what the logs hold. `sublayers`: of the model. Throws Error as EventFile.
  RunEvents(const RunPaths& paths, int sublayers);

  // A line of metrics.jsonl, and those of probes.jsonl of the same step.
  void add(const Json& metrics, const std::vector<Json>& probes);

 private:
  int sublayers_;
  double start_;
  EventFile file_;
};

}  // namespace attnres
