// What a run or a study looks like at this moment, drawn in characters for a terminal.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "attnres/plots/text_plot.h"
#include "attnres/report/run_data.h"
#include "attnres/study/study_record.h"

namespace attnres {

struct LiveRun {
  RunData data;
  int64_t steps = 0;                       // of the whole run
  double quiet_seconds = kNotMeasured;     // since it last wrote something
  std::optional<int64_t> saved_step = {};  // of its last checkpoint
  bool is_of_study = false;                // whose command goes on with it

  int64_t step() const { return data.metrics.empty() ? 0 : data.metrics.back().step; }
  bool is_done() const { return steps > 0 && step() >= steps; }
  // Whether its user stopped it, and it has not gone on: only then a checkpoint is made at a step
  // where the recipe asks for none, and no step follows.
  bool was_interrupted() const;
  // Whether it seems to be trained now: it wrote something less than a minute ago, or than five of
  // its steps take.
  bool is_at_work() const;
  double seconds_per_step() const;  // lately, without evaluation; NaN before the second step
};

// A run of a study, by study.json, and by its own folder where it has begun and not ended.
struct LiveStudyRun {
  StudyRunRecord record;  // the loss: as last measured
  bool is_at_work = false;
  bool has_diverged = false;            // as its run.json says
  double quiet_seconds = kNotMeasured;  // since it last wrote something; NaN before it begins

  bool has_ended() const { return record.has_ended(); }
  bool has_failed() const { return has_diverged || record.state == RunState::failed; }
  double share() const;  // of its steps
};

struct LiveStudy {
  std::string name, question;
  std::vector<LiveStudyRun> runs;

  // Whether every run has ended.
  bool is_done() const;
};

// Throw Error as read_runs and parse_study_json.
LiveRun read_live_run(const std::filesystem::path& folder);
LiveStudy read_live_study(const std::filesystem::path& folder);

// Lines of at most `style.columns` characters, 40 or more, and with `style.lines`, 10 or more, not
// more of them; each ends in a line break.
//
// A run: its progress and the time left, losses, learning rate and speed over the steps so far, and
// the mean depth weights when they were last measured, sites beside each other. Of one that has
// stopped, how it goes on.
std::string draw_live(const LiveRun& run, const TextStyle& style);
// A study: the progress of the grid, and a line for each run. Where they do not all fit, those
// that are at work or have failed come first, then those that wrote something last.
std::string draw_live(const LiveStudy& study, const TextStyle& style);

}  // namespace attnres
