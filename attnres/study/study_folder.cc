#include "attnres/study/study_folder.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "attnres/support/json.h"
#include "attnres/support/told_numbers.h"

namespace attnres {
namespace fs = std::filesystem;
namespace {

// Runs that had failed when study.json was written, by name.
std::map<std::string, RunStatus> remembered_failures(const StudyPaths& paths) {
  std::map<std::string, RunStatus> failures;
  if (!path_exists(paths.study_json())) return failures;
  const fs::path file = paths.study_json();
  for (const StudyRunRecord& run : parse_study_json(read_json(file), file.string()).runs) {
    if (run.error.empty()) continue;
    const bool diverged = run.state == RunState::diverged;
    failures[run.name] = {.state = diverged ? RunState::diverged : RunState::failed,
                          .error = run.error};
  }
  return failures;
}

}  // namespace

RunStatus look_at_run(const StudyPaths& paths, const StudyRun& run) {
  const RunPaths folder = paths.run(run.name);
  RunStatus status;
  if (run.waits) status.state = RunState::waiting;
  if (!run.obstacle.empty()) return {.state = RunState::failed, .error = run.obstacle};
  if (run.waits || !path_exists(folder.run_json())) return status;
  status.state = RunState::unfinished;
  const Json record = read_run_json(folder);
  status.parameters = count_at(record, "parameters").value_or(0);
  if (path_exists(folder.last())) status.saved = read_training_state(folder.last());
  if (status.saved && status.saved->step >= run.recipe.train.steps) {
    status.state = RunState::done;
  } else if (const Json* why = find(record, "/diverged/error"); why && why->is_string()) {
    status.state = run.is_trial ? RunState::diverged : RunState::failed;
    status.error = why->get<std::string>();
    std::replace(status.error.begin(), status.error.end(), '\n', ' ');
  }
  return status;
}

std::vector<RunStatus> look_at_runs(const StudyPaths& paths, const std::vector<StudyRun>& runs) {
  const auto failures = remembered_failures(paths);
  std::vector<RunStatus> statuses;
  for (const StudyRun& run : runs) {
    RunStatus& status = statuses.emplace_back(look_at_run(paths, run));
    const auto failure = failures.find(run.name);
    if (failure == failures.end()) continue;
    const bool begun = status.state == RunState::unfinished;
    const bool diverged = failure->second.state == RunState::diverged;
    // A trial whose folder is gone is tried again.
    if (!begun && (diverged || status.state != RunState::missing)) continue;
    status.state = failure->second.state;
    status.error = failure->second.error;
  }
  return statuses;
}

TrialLosses trial_losses(const std::vector<StudyRun>& runs,
                         const std::vector<RunStatus>& statuses) {
  TrialLosses losses;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (!runs[i].is_trial || !statuses[i].has_ended()) continue;
    const bool done = statuses[i].state == RunState::done;
    losses[runs[i].name] = done ? statuses[i].saved->validation_loss : INFINITY;
  }
  return losses;
}

void require_same_recipes(const StudyPaths& paths, const std::vector<StudyRun>& runs) {
  constexpr int kMostShown = 5;
  std::string list;
  int changed = 0;
  for (const StudyRun& run : runs) {
    const RunPaths folder = paths.run(run.name);
    if (run.waits || !run.obstacle.empty() || !path_exists(folder.run_json())) continue;
    // With every default filled in: a run of an older version lacks the keys that came after it.
    const Json before = recipe_to_json(parse_recipe(read_run_json(folder).at("recipe")));
    const auto found = differences(before, recipe_to_json(run.recipe));
    if (found.empty() || ++changed > kMostShown) continue;
    list += fmt::format("\n  {}", run.name);
    for (const std::string& difference : found) list += "\n    " + difference;
  }
  if (changed > kMostShown) list += fmt::format("\n  and {} more runs", changed - kMostShown);
  require(changed == 0,
          "{}: runs of this study have begun with another recipe:{}\n"
          "undo the change, choose another --out, or move those folders of {} away",
          paths.folder.string(), list, (paths.folder / "runs").string());
}

std::optional<StudyRecord> read_begun_study(const StudyPaths& paths, const std::string& name) {
  if (!path_exists(paths.study_json())) {
    require(!path_exists(paths.folder / "runs") && !path_exists(paths.recipes()),
            "{}: holds runs or recipes, but no study.json: this folder is not a study's; choose "
            "another --out",
            paths.folder.string());
    require(!path_exists(paths.folder / "run.json"),
            "{}: holds a run, and a study would hide it; choose another --out",
            paths.folder.string());
    return std::nullopt;
  }
  const Json json = read_json(paths.study_json());
  require(json.is_object() && json.contains("study") && json["study"].is_string(),
          "{}: not a study's: it has no \"study\"; choose another --out",
          paths.study_json().string());
  require(json["study"] == name, "{}: holds the study {}; choose another --out for {}",
          paths.folder.string(), json["study"].get<std::string>(), name);
  return parse_study_json(json, paths.study_json().string());
}

int64_t logged_steps(const RunPaths& run) {
  constexpr std::streamoff kTail = 8192;  // more than a line of it is long
  std::ifstream in(run.metrics(), std::ios::binary | std::ios::ate);
  if (!in) return 0;
  const std::streamoff size = in.tellg();
  in.seekg(std::max<std::streamoff>(size - kTail, 0));
  std::string tail(static_cast<size_t>(std::min(size, kTail)), '\0');
  in.read(tail.data(), static_cast<std::streamsize>(tail.size()));
  // The last that ends, which is not being written.
  const size_t end = tail.rfind('\n');
  if (end == std::string::npos || end == 0) return 0;
  const size_t begin = tail.rfind('\n', end - 1) + 1;
  const Json line = Json::parse(tail.substr(begin, end - begin), nullptr, false);
  return line.is_object() ? count_in(line.value("step", Json())).value_or(0) : 0;
}

}  // namespace attnres
