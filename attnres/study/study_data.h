// A study as it stands in its folder: study.json, and what the runs left behind.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "attnres/report/arms.h"
#include "attnres/report/run_data.h"
#include "attnres/study/study_record.h"
#include "attnres/support/json.h"

namespace attnres {

struct Inspection;  // inspect/inspection.h

// The runs of a study by their arms, compared with the baseline at equal arms of all other axes.
// Where study.json names no baseline, it is the arm "residual" of the axes that have one.
struct StudyArms {
  std::vector<Arm> arms;                        // of all but trials; final losses of runs done
  std::vector<std::vector<std::string>> names;  // of each, one of each axis
  std::map<std::vector<std::string>, size_t> by_names;
  std::vector<bool> varying;  // the axes that have more than one arm
  std::vector<std::optional<size_t>> baselines;
  std::string baseline_axis;   // the first that has one; or ""
  std::string baseline_label;  // "residual"; or ""
};
StudyArms compare_study(const StudyRecord& study);

// The arm with these names. None where no run has them: but an arm at its own learning rate, which
// is the common one, has no runs of its own, and is that at the common one.
std::optional<size_t> find_arm(const StudyArms& arms, const StudyRecord& study,
                               std::vector<std::string> names);

// The folder: study.json, and of every run that has begun its folder.
struct StudyData {
  std::filesystem::path folder;
  StudyRecord study;
  StudyArms arms;
  std::vector<std::optional<RunData>> runs;  // as study.runs; none of one that has not begun
  // As study.runs; null where there is none.
  std::vector<std::shared_ptr<const Inspection>> inspections;
  // As study.runs; by format of weights, what the model's validation loss is with it.
  std::vector<std::map<std::string, double>> losses_by_weights;
  std::vector<std::string> notes;  // what could not be read

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
