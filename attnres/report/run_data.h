// What a training run left behind, read for a report.
//
// A run folder holds
//   run.json       {"recipe": {"name", "model", "train", "tokenizer"}, "build", "data",
//                   "parameters", "machine"}, and "from" and "diverged", as run_folder.h has them
//   metrics.jsonl  one object a line: step, tokens, seconds, and what was measured at that step
//   probes.jsonl   {"step", "site", "name", "value"}
//   samples.jsonl  {"step", "prompt", "text"}
//   trace.json     of several processes: what each did when (parallel/timeline.h)
// Only run.json must be there. The run may still be writing, or have died at any moment.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "attnres/support/json.h"

namespace attnres {

inline constexpr double kNotMeasured = std::numeric_limits<double>::quiet_NaN();

// JSON has no NaN: what was not measured is null.
Json number_or_null(double value);

// One logged step. A value that was not measured, or was not finite, is NaN.
struct Metric {
  int64_t step = 0;
  double tokens = kNotMeasured;             // trained on so far
  double seconds = kNotMeasured;            // of training so far, without evaluation
  double loss = kNotMeasured;               // training loss, nats per token
  double val_loss = kNotMeasured;           // validation loss, nats per token
  double learning_rate = kNotMeasured;      // of this step
  double tokens_per_second = kNotMeasured;  // at this step
};

struct Sample {
  int64_t step = 0;
  std::string prompt;
  std::string text;
};

// A probe at one step: site -> value. A single number is a list of one.
using SiteValues = std::map<int, std::vector<double>>;

struct RunData {
  std::filesystem::path path;
  std::string label;       // the recipe's name; with the folder where two runs share a name
  std::string mechanism;   // recipe.model.depth_mixing.type; empty if unknown
  bool residual = false;   // whether that is plain residual connections
  int64_t block_size = 0;  // of Block AttnRes, in sublayers; 0 of everything else
  int layers = 0;          // Transformer layers, two sublayers each; 0 if unknown
  Json record;             // run.json
  std::optional<int64_t> diverged_at = {};  // the step whose loss or weights were no numbers
  std::vector<Metric> metrics;              // ascending, distinct steps
  std::map<std::string, std::map<int64_t, SiteValues>> probes;  // by name and step
  std::vector<Sample> samples;                                  // ascending steps
  Json trace;                                                   // null if there is none
  std::vector<std::string> notes;                               // what is missing or was skipped
};

// Reads the run folders, in the order given. A line that is torn at a file's end is ignored; other
// lines that cannot be read are skipped and counted in `notes`. Where a resumed run went back to an
// earlier step, what it then wrote replaces what was written beyond that step.
// Throws Error for a path that is not a run folder, UsageError for none or the same one twice.
std::vector<RunData> read_runs(const std::vector<std::filesystem::path>& paths);

// The objects of a log of a run folder (run_logs.h), steps ascending, as read_runs takes them: what
// it skips is added to `notes`. None of a file that is not there.
std::vector<Json> read_run_log(const std::filesystem::path& path, std::vector<std::string>& notes);

// A probe at its last step with as many sites as any step has (a run that is killed while it writes
// leaves its last step incomplete). Step -1 and no sites if the run never measured it.
struct ProbeSnapshot {
  int64_t step = -1;
  SiteValues sites;
};
ProbeSnapshot last_probe(const RunData& run, const std::string& name);

// Where the validation loss was measured last; nullptr if it never was.
const Metric* last_validation(const RunData& run);

// What a JSON pointer such as "/recipe/model" leads to, or nullptr.
const Json* find(const Json& json, std::string_view pointer);

}  // namespace attnres
