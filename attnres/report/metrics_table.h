// Everything that runs measured at their steps, as one table for spreadsheets and programs.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace attnres {

struct MetricsTable {
  std::string csv;
  std::vector<std::string> notes;  // what was skipped
};

// A line for each step of each run: the run's folder, then the keys of metrics.jsonl, "step" first,
// and the probes that are single numbers, with their site: "output_rms/3" (train/step/probe.h).
// Cells of what was not measured at a step are empty. Throws Error for what is no run folder.
MetricsTable metrics_table(const std::vector<std::filesystem::path>& runs);

}  // namespace attnres
