// A study as it stands in its folder: study.json, and what the runs left behind.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "attnres/report/arms.h"
#include "attnres/report/run_data.h"
#include "attnres/support/json.h"

namespace attnres {

// A run by study.json. Numbers that were not measured are NaN.
struct StudyRunRecord {
  std::string name;
  std::vector<std::string> arms;  // one of each axis; "" where the run has none of it
  int64_t seed = 0;
  bool is_trial = false;  // of learning rates: in no table or figure of arms
  std::string state;      // "waiting", "missing", "unfinished", "done", "failed", "diverged"
  int64_t step = 0, steps = 0, parameters = 0;
  double tokens = kNotMeasured, flops = kNotMeasured, seconds = kNotMeasured;
  double final_val_loss = kNotMeasured;
  double peak_bytes = kNotMeasured;  // of memory
  std::string from;                  // the run whose weights it begins with; or ""
  std::string error;

  bool is_done() const { return state == "done"; }
};

// study.json. What an older version did not write is empty.
struct StudyText {
  std::string name, question, claim;
  std::vector<std::string> axes;
  std::map<std::string, std::string> baseline;  // the arm of each axis that is one
  std::vector<Json> figures;                    // objects with "kind"
  std::vector<std::string> data, validation;    // files and folders of text
  int64_t threads = 0;                          // 0: unknown
  Json tuning;                                  // null: the learning rate was not tuned
  std::vector<std::string> chosen;              // sentences: how its model was chosen
  bool smoke = false;                           // whether every run is tiny
  std::vector<StudyRunRecord> runs;
};

// Values of another type than expected are taken for absent. Throws Error, naming `what`, where
// there are no runs, or one has no name or one that is no file's.
StudyText parse_study_text(const Json& json, const std::string& what);

// The runs of a study by their arms, compared with the baseline at equal arms of all other axes.
// Where study.json names no baseline, it is the arm "residual" of the axes that have one.
struct StudyArms {
  std::vector<Arm> arms;                        // of all but trials; final losses of runs done
  std::vector<std::vector<std::string>> names;  // of each, one of each axis
  std::vector<std::optional<size_t>> baselines;
  std::string baseline_axis;   // the first that has one; or ""
  std::string baseline_label;  // "residual"; or ""
};
StudyArms compare_study(const StudyText& study);

// The arm with these names. None where no run has them: but an arm at its own learning rate, which
// is the common one, has no runs of its own, and is that at the common one.
std::optional<size_t> find_arm(const StudyArms& arms, const StudyText& study,
                               std::vector<std::string> names);

// The folder: study.json, and of every run that has begun its folder.
struct StudyData {
  std::filesystem::path folder;
  StudyText study;
  StudyArms arms;
  std::vector<std::optional<RunData>> runs;  // as study.runs; none of one that has not begun
  std::vector<Json> inspections;             // as study.runs; null where there is none
  std::vector<std::string> notes;            // what could not be read

  // The run of an arm with the least seed that is done, or else that has begun.
  std::optional<size_t> shown_run(size_t arm) const;
  // The arms to look into, which have a run that has begun: all where they are few, else those of
  // one combination of the axes beside the baseline's, the last whose baseline has such a run.
  std::vector<size_t> shown_arms() const;
  // In the order in which runs first have them.
  std::vector<std::string> arms_of(size_t axis) const;
  std::optional<size_t> find_axis(const std::string& name) const;
  // An arm's name without that of one axis; all of it where no axis is named.
  std::string label_without(size_t arm, std::optional<size_t> axis) const;
};
// Throws Error where the folder has no study.json, or one that is none.
StudyData read_study_data(const std::filesystem::path& folder);

// Whether `path` is the folder of a study.
bool is_study_folder(const std::filesystem::path& path);

}  // namespace attnres
