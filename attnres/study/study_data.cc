#include "attnres/study/study_data.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "attnres/inspect/inspection.h"
#include "attnres/parameters/weight_format.h"
#include "attnres/study/model_look.h"
#include "attnres/study/study_recipe.h"
#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "attnres/support/told_numbers.h"

namespace attnres {
namespace fs = std::filesystem;
namespace {

// The names of the axes that have more than one arm, or else of all.
std::string label_of(const std::vector<std::string>& names, const std::vector<bool>& shown) {
  const bool any = std::find(shown.begin(), shown.end(), true) != shown.end();
  std::string label;
  for (size_t axis = 0; axis < names.size(); ++axis) {
    if ((any && !shown[axis]) || names[axis].empty()) continue;
    label += (label.empty() ? "" : " · ") + names[axis];
  }
  return label;
}

std::vector<bool> varying_axes(const StudyRecord& study) {
  std::vector<std::set<std::string>> arms(study.axes.size());
  for (const StudyRunRecord& run : study.runs) {
    if (run.is_trial) continue;
    for (size_t axis = 0; axis < arms.size(); ++axis) arms[axis].insert(run.arms[axis]);
  }
  std::vector<bool> varying;
  for (const auto& names : arms) varying.push_back(names.size() > 1);
  return varying;
}

// By axis, with the default.
std::map<std::string, std::string> baseline_of(const StudyRecord& study) {
  if (!study.baseline.empty()) return study.baseline;
  std::map<std::string, std::string> baseline;
  for (const StudyRunRecord& run : study.runs) {
    for (size_t axis = 0; axis < study.axes.size(); ++axis) {
      if (!run.is_trial && run.arms[axis] == "residual") baseline[study.axes[axis]] = "residual";
    }
  }
  return baseline;
}

// Of what `attnres eval --json` printed.
double read_loss(const fs::path& file) {
  const Json json = read_json(file);
  const Json* loss = find(json, "/loss");
  require(loss && loss->is_number(), "{}: has no number \"loss\"", file.string());
  return measured_in(*loss);
}

void read_run_folder(StudyData& data, size_t index) {
  const fs::path folder = data.folder / "runs" / data.study.runs[index].name;
  if (!path_exists(folder / "run.json")) return;
  try {
    data.runs[index] = std::move(read_runs({folder}).front());
    data.runs[index]->label = data.study.runs[index].name;
    if (const fs::path file = folder / ModelLook().file_name(); path_exists(file)) {
      data.inspections[index] =
          std::make_shared<const Inspection>(read_inspection(read_json(file), file.string()));
    }
    for (const WeightBlocks& format : kWeightFormats) {
      const fs::path file = folder / ModelLook{format.name}.file_name();
      if (path_exists(file)) data.losses_by_weights[index][format.name] = read_loss(file);
    }
  } catch (const Error& error) {
    data.notes.push_back(error.what());
  }
}

}  // namespace

std::optional<size_t> find_arm(const StudyArms& arms, const StudyRecord& study,
                               std::vector<std::string> names) {
  auto found = arms.by_names.find(names);
  const auto rate = std::find(study.axes.begin(), study.axes.end(), kRateAxis);
  if (found == arms.by_names.end() && rate != study.axes.end() && !study.tuning.is_null()) {
    names[static_cast<size_t>(rate - study.axes.begin())] = kCommonRate;
    found = arms.by_names.find(names);
  }
  if (found == arms.by_names.end()) return std::nullopt;
  return found->second;
}

StudyArms compare_study(const StudyRecord& study) {
  StudyArms out;
  out.varying = varying_axes(study);
  for (size_t i = 0; i < study.runs.size(); ++i) {
    const StudyRunRecord& run = study.runs[i];
    if (run.is_trial) continue;
    const auto [found, is_new] = out.by_names.emplace(run.arms, out.names.size());
    const size_t arm = found->second;
    if (is_new) {
      out.names.push_back(run.arms);
      out.arms.push_back({.label = label_of(run.arms, out.varying), .runs = {}});
    }
    out.arms[arm].runs.push_back(i);
    if (run.is_done() && !std::isnan(run.final_val_loss)) {
      out.arms[arm].losses[run.seed] = run.final_val_loss;
    }
  }
  const auto baseline = baseline_of(study);
  for (const std::vector<std::string>& names : out.names) {
    std::vector<std::string> wanted = names;
    for (size_t axis = 0; axis < study.axes.size(); ++axis) {
      const auto arm = baseline.find(study.axes[axis]);
      if (arm != baseline.end()) wanted[axis] = arm->second;
    }
    out.baselines.push_back(baseline.empty() ? std::nullopt : find_arm(out, study, wanted));
  }
  for (const std::string& axis : study.axes) {
    const auto arm = baseline.find(axis);
    if (arm == baseline.end()) continue;
    if (out.baseline_axis.empty()) out.baseline_axis = axis;
    out.baseline_label += (out.baseline_label.empty() ? "" : " · ") + arm->second;
  }
  compare_arms(out.arms, out.baselines);
  return out;
}

std::optional<size_t> StudyData::shown_run(size_t arm) const {
  std::optional<size_t> shown;
  for (const size_t run : arms.arms[arm].runs) {
    if (!runs[run]) continue;
    const auto rank = [&](size_t i) {
      return std::pair(!study.runs[i].is_done(), study.runs[i].seed);
    };
    if (!shown || rank(run) < rank(*shown)) shown = run;
  }
  return shown;
}

std::vector<size_t> StudyData::shown_arms() const {
  constexpr size_t kFew = 6;
  std::vector<size_t> begun;
  for (size_t arm = 0; arm < arms.arms.size(); ++arm) {
    if (shown_run(arm)) begun.push_back(arm);
  }
  const auto axis = find_axis(arms.baseline_axis);
  if (begun.size() <= kFew || !axis) return begun;
  const auto others = [&](size_t arm) {
    std::vector<std::string> names = arms.names[arm];
    names[*axis].clear();
    return names;
  };
  // With the baseline, which not every combination has a run of its own of.
  const auto last = std::find_if(begun.rbegin(), begun.rend(),
                                 [&](size_t arm) { return arms.baselines[arm] == arm; });
  const std::vector<std::string> kept = others(last == begun.rend() ? begun.back() : *last);
  std::erase_if(begun, [&](size_t arm) { return others(arm) != kept; });
  return begun;
}

std::vector<std::string> StudyData::arms_of(size_t axis) const {
  std::vector<std::string> names;
  for (const std::vector<std::string>& arm : arms.names) {
    if (std::find(names.begin(), names.end(), arm[axis]) == names.end()) names.push_back(arm[axis]);
  }
  return names;
}

std::optional<size_t> StudyData::find_axis(const std::string& name) const {
  const auto found = std::find(study.axes.begin(), study.axes.end(), name);
  if (found == study.axes.end()) return std::nullopt;
  return static_cast<size_t>(found - study.axes.begin());
}

std::string StudyData::label_without(size_t arm, std::optional<size_t> axis) const {
  std::vector<bool> shown = arms.varying;
  if (axis) shown[*axis] = false;
  const bool any = std::find(shown.begin(), shown.end(), true) != shown.end();
  return any ? label_of(arms.names[arm], shown) : study.name;
}

StudyData read_study_data(const fs::path& folder) {
  StudyData data;
  data.folder = folder;
  const fs::path file = folder / "study.json";
  require(path_exists(file), "{}: not a study's folder: it has no study.json", folder.string());
  data.study = parse_study_json(read_json(file), file.string());
  data.arms = compare_study(data.study);
  data.runs.resize(data.study.runs.size());
  data.inspections.resize(data.study.runs.size());
  data.losses_by_weights.resize(data.study.runs.size());
  for (size_t i = 0; i < data.runs.size(); ++i) {
    if (!data.study.runs[i].is_trial) read_run_folder(data, i);
  }
  return data;
}

bool is_study_folder(const fs::path& path) {
  return path_exists(path) && fs::is_directory(path) && path_exists(path / "study.json");
}

}  // namespace attnres
