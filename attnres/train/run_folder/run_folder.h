// Where a run keeps what. A run folder holds
//   run.json          the resolved recipe, the build, the machine, the data (run_text.h), and of a
//                     run that began with the weights of another (from): its name, the step where
//                     it is known, and the checksum of its weights; and of one that went on with
//                     other settings `changes`: a list of {step, key: [before, after]}; and of
//                     one whose loss or weights stopped being numbers, until it is resumed,
//                     `diverged`: {step, error}
//   metrics.jsonl     a line per step: step, tokens, seconds, loss, lr, grad_norm,
//                     tokens_per_second, and val_loss where it was measured; with experts also
//                     expert_load_max and expert_load_min, the load of the busiest and of the
//                     idlest expert of all sites over the mean load of its site
//   probes.jsonl      {step, site, name, value}, see probe.h
//   samples.jsonl     {step, prompt, text}
//   events.out.tfevents.*   metrics and probes for TensorBoard, see run_events.h
//   checkpoints/last, checkpoints/best
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "attnres/support/file.h"
#include "attnres/support/json.h"

namespace attnres {

struct RunPaths {
  std::filesystem::path folder;

  std::filesystem::path run_json() const { return folder / "run.json"; }
  std::filesystem::path metrics() const { return folder / "metrics.jsonl"; }
  std::filesystem::path probes() const { return folder / "probes.jsonl"; }
  std::filesystem::path samples() const { return folder / "samples.jsonl"; }
  std::filesystem::path trace() const { return folder / "trace.json"; }  // of several processes
  std::filesystem::path checkpoints() const { return folder / "checkpoints"; }
  std::filesystem::path last() const { return checkpoints() / "last"; }
  std::filesystem::path best() const { return checkpoints() / "best"; }
};

// run.json. A run of an earlier version, which drew its rows, says so in data.order. Throws Error
// when it is missing or is not a run's.
Json read_run_json(const RunPaths& paths);

// The run whose checkpoint a model directory is; nothing where it is none's.
std::optional<RunPaths> run_of_checkpoint(const std::filesystem::path& folder);

// What to call the model in a folder: the run whose checkpoint it is, by its recipe's name, or else
// the folder itself.
std::string model_name(const std::filesystem::path& folder);

// Throws Error unless a run can begin in the folder: it can be made or written in, and holds no
// logs of something that is not a run.
void require_free_folder(const RunPaths& paths);

// Throws Error unless `after`, the run.json that would be written now, continues `before`: the same
// data, and the same recipe but for what leaves every step that is done as it was:
//   train.steps, when it grows: the learning rate then follows the schedule of the new number, as
//   if the run had it from the beginning; the rates of steps that are done stay what they were
//   train.eval_every, train.checkpoint_every, train.sample_tokens
//   parallel: the processes, whose steps are the same but for rounding
// The message names what differs.
void require_same_run(const std::filesystem::path& folder, const Json& before, const Json& after);

// `before` with the recipe of `after`; what differs is noted among its `changes`, as of `step`.
Json with_changes(const Json& before, const Json& after, int64_t step);

}  // namespace attnres
