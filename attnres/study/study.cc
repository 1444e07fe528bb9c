#include "attnres/study/study.h"

#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "attnres/study/report.h"
#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "attnres/support/format.h"
#include "attnres/support/machine.h"
#include "attnres/support/nearest.h"

namespace attnres {
namespace fs = std::filesystem;
namespace {

std::vector<std::string> absolute_texts(const std::vector<fs::path>& paths) {
  std::vector<std::string> texts;
  for (const fs::path& path : paths) {
    require(path_exists(path), "--data {}: no such file or folder", path.string());
    texts.push_back(fs::canonical(path).string());
  }
  return texts;
}

// With what the study began with, where it has begun.
StudyRecord make_record(const StudyJob& job, const StudyPaths& paths) {
  StudyRecord record = {.name = job.name,
                        .question = job.question,
                        .axes = job.axes,
                        .data = absolute_texts(job.data),
                        .threads = std::max(describe_machine().cores / job.jobs, 1)};
  const Json before = read_study_json(paths, job.name);
  if (before.is_null()) return record;
  const std::vector<std::string> data = before.at("data");
  require(record.data.empty() || record.data == data,
          "{}: this study began with the text {}; leave --data out, or choose another --out",
          paths.folder.string(), data.empty() ? "that training takes without --data" : data[0]);
  record.data = data;
  record.threads = before.at("threads");
  return record;
}

bool is_left(const RunStatus& status) {
  return status.state != RunState::done;
}

// Throws Error unless the disk has room for the checkpoints of what is left.
void require_disk(const StudyJob& job, const StudyPaths& paths, const StudyOutlook& outlook) {
  double needed = 0, free = INFINITY;
  for (const size_t run : job.chosen) {
    if (outlook.statuses[run].state != RunState::missing) continue;
    if (needed == 0) {
      const RunPaths folder = paths.run(job.runs[run].name);
      free = static_cast<double>(find_resources(folder.checkpoints()).free_disk);
    }
    needed += static_cast<double>(outlook.plans[run].disk_bytes);
  }
  require(needed <= free,
          "{}: the checkpoints of the runs that are missing need about {} of disk, {} is free. "
          "Free some space, choose another --out, or fewer runs with --only",
          paths.folder.string(), format_bytes(needed), format_bytes(free));
}

void warn_of_memory(const StudyJob& job, const StudyOutlook& outlook, StudyObserver& observer) {
  std::vector<int64_t> sizes;
  for (const size_t run : job.chosen) {
    if (is_left(outlook.statuses[run])) sizes.push_back(outlook.plans[run].bytes);
  }
  std::sort(sizes.rbegin(), sizes.rend());
  sizes.resize(std::min(sizes.size(), static_cast<size_t>(job.jobs)));
  double needed = 0;
  for (const int64_t size : sizes) needed += static_cast<double>(size);
  const auto memory = static_cast<double>(describe_machine().memory);
  if (memory == 0 || needed <= memory) return;
  observer.on_message(
      fmt::format("warning: {} at once need about {} of memory, this machine has "
                  "{}; lower --jobs",
                  counted(std::ssize(sizes), "run"), format_bytes(needed), format_bytes(memory)));
}

// All but the report, which takes longer.
void write_tables(const StudyPaths& paths, const StudyRecord& record,
                  const std::vector<StudyRun>& runs, const std::vector<RunStatus>& statuses) {
  write_file(paths.study_json(), study_json(record, runs, statuses).dump(2) + "\n");
  write_file(paths.runs_csv(), runs_csv(record, runs, statuses));
  write_file(paths.arms_csv(), arms_csv(record, runs, statuses));
}

// A report that cannot be written takes nothing from what the runs reached.
void add_report(const StudyPaths& paths, const std::vector<StudyRun>& runs, StudySummary& summary) {
  std::vector<fs::path> done;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (!is_left(summary.statuses[i])) done.push_back(paths.run(runs[i].name).folder);
  }
  if (done.empty()) return;
  try {
    const ReportSummary report = write_report(done, {.out = paths.report()});
    summary.report = report.page;
    summary.notes.insert(summary.notes.end(), report.notes.begin(), report.notes.end());
  } catch (const Error& error) {
    summary.notes.push_back(fmt::format("no report was written: {}", error.what()));
  }
}

}  // namespace

std::vector<size_t> choose_runs(const std::vector<StudyRun>& runs,
                                const std::vector<std::string>& patterns) {
  const auto matches = [](const std::string& pattern, const StudyRun& run) {
    return ::fnmatch(pattern.c_str(), run.name.c_str(), 0) == 0;
  };
  std::vector<std::string> names;
  for (const StudyRun& run : runs) names.push_back(run.name);
  for (const std::string& pattern : patterns) {
    require_usage(std::any_of(runs.begin(), runs.end(),
                              [&](const StudyRun& run) { return matches(pattern, run); }),
                  "--only {}: no run of this grid has such a name; the nearest is {}", pattern,
                  nearest(pattern, names));
  }
  std::vector<size_t> chosen;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (patterns.empty() ||
        std::any_of(patterns.begin(), patterns.end(),
                    [&](const std::string& pattern) { return matches(pattern, runs[i]); })) {
      chosen.push_back(i);
    }
  }
  return chosen;
}

double StudyOutlook::seconds(const StudyJob& job) const {
  double seconds = 0;
  for (const size_t run : job.chosen) {
    const auto& saved = statuses[run].saved;
    const double done = saved ? static_cast<double>(saved->step) : 0;
    seconds += plans[run].seconds * (1 - done / static_cast<double>(plans[run].steps));
  }
  return seconds / job.jobs;
}

StudyOutlook look_ahead(const StudyJob& job) {
  const StudyPaths paths{job.out};
  StudyOutlook outlook;
  outlook.record = make_record(job, paths);
  require_same_recipes(paths, job.runs);
  outlook.statuses = look_at_runs(paths, job.runs);
  outlook.plans = plan_costs(job.runs, outlook.record.threads);
  return outlook;
}

StudySummary run_study(const StudyJob& job, StudyObserver& observer) {
  const StudyPaths paths{job.out};
  StudyOutlook outlook = look_ahead(job);
  require_disk(job, paths, outlook);
  warn_of_memory(job, outlook, observer);
  make_folder(paths.folder);
  const FolderLock lock(paths.folder);
  make_folder(paths.recipes());
  make_folder(paths.logs());

  StudySummary summary;
  summary.record = outlook.record;
  summary.statuses = std::move(outlook.statuses);
  const auto write = [&] { write_tables(paths, summary.record, job.runs, summary.statuses); };
  write();
  const RunnerOptions options = {.program = job.program,
                                 .data = summary.record.data,
                                 .jobs = job.jobs,
                                 .threads = summary.record.threads,
                                 .stop_after = job.stop_after};
  summary.was_stopped = train_runs(paths, job.runs, outlook.plans, job.chosen, options,
                                   summary.statuses, observer, write);
  add_report(paths, job.runs, summary);
  return summary;
}

}  // namespace attnres
