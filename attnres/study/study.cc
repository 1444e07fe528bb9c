#include "attnres/study/study.h"

#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "attnres/data/corpus.h"
#include "attnres/data/token_bin.h"
#include "attnres/study/quick_study.h"
#include "attnres/study/study_page.h"
#include "attnres/support/compute_device.h"
#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "attnres/support/format.h"
#include "attnres/support/json.h"
#include "attnres/support/machine.h"
#include "attnres/support/nearest.h"
#include "attnres/support/progress.h"

namespace attnres {
namespace fs = std::filesystem;
namespace {

constexpr double kPageSeconds = 60;  // at least, from one page to the next while runs go on

std::vector<std::string> absolute_texts(const char* option, const std::vector<fs::path>& paths) {
  std::vector<std::string> texts;
  for (const fs::path& path : paths) {
    require(path_exists(path), "{} {}: no such file or folder", option, path.string());
    if (!fs::is_directory(path) && !is_token_bin(path)) require_text_file(path);
    texts.push_back(fs::canonical(path).string());
  }
  return texts;
}

// What a study began with, which later calls may leave out but not change.
std::vector<std::string> text_of(const StudyPaths& paths, const std::string& option,
                                 const std::vector<fs::path>& given,
                                 const std::vector<std::string>* before) {
  const std::vector<std::string> texts = absolute_texts(option.c_str(), given);
  if (before == nullptr) return texts;
  require(texts.empty() || texts == *before,
          "{}: this study began with the text {}; leave {} out, or choose another --out",
          paths.folder.string(),
          before->empty() ? "that training takes without " + option : before->front(), option);
  return *before;
}

// Threads of each run: those that the study began with.
int threads_of(const StudyJob& job, const StudyPaths& paths, int known) {
  if (known == 0) {
    return job.threads > 0 ? job.threads : std::max(describe_machine().cores / job.jobs, 1);
  }
  require(job.threads == 0 || job.threads == known,
          "{}: this study began with {} a run, and with another number results would differ in "
          "their last bits and speeds not compare; leave --threads out, or choose another --out",
          paths.folder.string(), counted(known, "thread"));
  return known;
}

// "cuda" and "cuda:0" are one.
std::string device_of(const StudyJob& job, const StudyRecord* before) {
  if (!job.device.empty()) return job.device == "cuda" ? "cuda:0" : job.device;
  return before != nullptr ? before->device : StudyRecord().device;
}

// With what the study began with, where it has begun.
StudyRecord make_record(const StudyJob& job, const StudyPaths& paths,
                        const std::optional<StudyRecord>& before) {
  require(!before || before->smoke == job.grid.smoke, "{}: holds {}; choose another --out",
          paths.folder.string(),
          job.grid.smoke ? "the runs themselves, and no smoke test" : "a smoke test");
  const StudyRecipe& study = job.study;
  return {.name = study.name,
          .question = study.question,
          .claim = study.claim,
          .axes = study.axis_names(),
          .baseline = {study.baseline.begin(), study.baseline.end()},
          .figures = parse_json(study.figures, "figures").get<std::vector<Json>>(),
          .data = text_of(paths, "--data", job.data, before ? &before->data : nullptr),
          .validation = text_of(paths, "--validation", job.validation,
                                before ? &before->validation : nullptr),
          .threads = threads_of(job, paths, before ? before->threads : 0),
          .device = device_of(job, before ? &*before : nullptr),
          .chosen = parse_json(study.chosen, "chosen"),
          .smoke = job.grid.smoke};
}

bool any_left(const StudyOutlook& outlook) {
  return std::any_of(outlook.chosen.begin(), outlook.chosen.end(),
                     [&](size_t run) { return !outlook.statuses[run].has_ended(); });
}

// Throws Error unless the disk has room for the checkpoints of what is left.
void require_disk(const StudyPaths& paths, const StudyOutlook& outlook) {
  double needed = 0, free = INFINITY;
  for (const size_t run : outlook.chosen) {
    const RunState state = outlook.statuses[run].state;
    if (state != RunState::missing && state != RunState::waiting) continue;
    if (needed == 0) {
      const RunPaths folder = paths.run(outlook.runs[run].name);
      free = static_cast<double>(find_resources(folder.checkpoints()).free_disk);
    }
    needed += static_cast<double>(outlook.plans[run].disk_bytes);
  }
  require(needed <= free,
          "{}: the checkpoints of the runs that are missing need about {} of disk, {} is free. "
          "Free some space, choose another --out, or fewer runs with --only",
          paths.folder.string(), format_bytes(needed), format_bytes(free));
}

// The memory that runs at once share, in bytes, and whose it is; 0 where that is not known.
std::pair<double, std::string> shared_memory(const StudyOutlook& outlook) {
  const DeviceMemory of_device = device_memory(c10::Device(outlook.record.device));
  if (of_device.all > 0) return {static_cast<double>(of_device.all), of_device.name};
  return {static_cast<double>(describe_machine().memory), "this machine"};
}

void warn_of_memory(const StudyJob& job, const StudyOutlook& outlook, StudyObserver& observer) {
  std::vector<int64_t> sizes;
  for (const size_t run : outlook.chosen) {
    if (!outlook.statuses[run].has_ended()) sizes.push_back(outlook.plans[run].bytes);
  }
  std::sort(sizes.rbegin(), sizes.rend());
  sizes.resize(std::min(sizes.size(), static_cast<size_t>(job.jobs)));
  double needed = 0;
  for (const int64_t size : sizes) needed += static_cast<double>(size);
  const auto [memory, whose] = shared_memory(outlook);
  if (memory == 0 || needed <= memory) return;
  observer.on_message(fmt::format(
      "warning: {} at once need about {} of memory, {} has {}; lower "
      "--jobs",
      counted(std::ssize(sizes), "run"), format_bytes(needed), whose, format_bytes(memory)));
}

void tell_of_device(const StudyOutlook& outlook, StudyObserver& observer) {
  if (outlook.device_before.empty() || !any_left(outlook)) return;
  observer.on_message(
      fmt::format("from here on runs compute on {}, until now on {}: what they compute is rounded "
                  "otherwise, and speeds do not compare",
                  outlook.record.device, outlook.device_before));
}

double bytes_of(const std::vector<fs::path>& texts) {
  double bytes = 0;
  for (const fs::path& text : texts) {
    const std::vector<fs::path> files =
        fs::is_directory(text) ? files_below(text) : std::vector{text};
    for (const fs::path& file : files) {
      std::error_code code;
      const auto size = static_cast<double>(fs::file_size(file, code));
      if (!code) bytes += size;
    }
  }
  return bytes;
}

// All but the page, which takes longer.
void write_tables(const StudyPaths& paths, const StudyOutlook& study) {
  const StudyRecord record = study.reached();
  write_file(paths.study_json(), study_json(record).dump(2) + "\n");
  write_file(paths.runs_csv(), runs_csv(record));
  write_file(paths.arms_csv(), arms_csv(record));
}

// Returns what there is to say of it. A page that cannot be written takes nothing from what the
// runs reached.
std::vector<std::string> write_page(const StudyPaths& paths, StudySummary& summary) {
  const std::vector<RunStatus>& statuses = summary.outlook.statuses;
  const bool begun = std::any_of(statuses.begin(), statuses.end(), [](const RunStatus& status) {
    return status.state != RunState::missing && status.state != RunState::waiting;
  });
  if (!begun) return {};
  try {
    const StudyPage page = write_study_page(paths.folder, paths.report());
    summary.report = page.page;
    summary.sentences = page.sentences;
    return page.notes;
  } catch (const Error& error) {
    return {fmt::format("no report was written: {}", error.what())};
  }
}

bool matches(const std::string& pattern, const StudyRun& run) {
  return ::fnmatch(pattern.c_str(), run.name.c_str(), 0) == 0;
}

void update_tuning(const StudyJob& job, StudyOutlook& outlook) {
  if (!job.study.tune) return;
  const TrialLosses losses = trial_losses(outlook.runs, outlook.statuses);
  outlook.record.tuning = tuning_json(job.study, job.grid.smoke, losses);
  outlook.notes = tuning_notes(job.study, job.grid.smoke, losses);
}

// The runs as the trials that have ended make them.
void plan_outlook(const StudyJob& job, const StudyPaths& paths, StudyOutlook& outlook) {
  outlook.runs = plan_runs(job.study, job.grid);
  require_matches(outlook.runs, job.only);
  require_same_recipes(paths, outlook.runs);
  outlook.statuses = look_at_runs(paths, outlook.runs);
  if (job.study.tune) {
    const TrialLosses losses = trial_losses(outlook.runs, outlook.statuses);
    outlook.runs = plan_runs(job.study, job.grid, losses);
    require_same_recipes(paths, outlook.runs);
    outlook.statuses = look_at_runs(paths, outlook.runs);
    update_tuning(job, outlook);
  }
  outlook.chosen = choose_runs(outlook.runs, job.only);
}

// Runs that wait though everything that was chosen has been tried.
int64_t count_waiting(const StudyOutlook& outlook) {
  return std::count_if(outlook.chosen.begin(), outlook.chosen.end(), [&](size_t run) {
    return outlook.statuses[run].state == RunState::waiting;
  });
}

}  // namespace

void require_matches(const std::vector<StudyRun>& runs, const std::vector<std::string>& patterns) {
  std::vector<std::string> names;
  for (const StudyRun& run : runs) names.push_back(run.name);
  for (const std::string& pattern : patterns) {
    require_usage(std::any_of(runs.begin(), runs.end(),
                              [&](const StudyRun& run) { return matches(pattern, run); }),
                  "--only {}: no run of this grid has such a name; the nearest is {}", pattern,
                  nearest(pattern, names));
  }
}

std::vector<size_t> choose_runs(const std::vector<StudyRun>& runs,
                                const std::vector<std::string>& patterns) {
  std::map<std::string, size_t> by_name;
  for (size_t i = 0; i < runs.size(); ++i) by_name[runs[i].name] = i;
  std::vector<bool> is_chosen(runs.size(), patterns.empty());
  const std::function<void(size_t)> choose = [&](size_t run) {
    if (is_chosen[run]) return;
    is_chosen[run] = true;
    for (const std::string& needed : runs[run].needs) choose(by_name.at(needed));
  };
  std::vector<size_t> chosen;
  for (size_t i = 0; i < runs.size(); ++i) {
    for (const std::string& pattern : patterns) {
      if (matches(pattern, runs[i])) choose(i);
    }
  }
  for (size_t i = 0; i < runs.size(); ++i) {
    if (is_chosen[i]) chosen.push_back(i);
  }
  return chosen;
}

StudyRecord StudyOutlook::reached() const {
  return with_runs(record, runs, statuses, plans);
}

double StudyOutlook::seconds(int jobs) const {
  const int at_once = runs_side_by_side(jobs, record.threads, record.device);
  double seconds = 0;
  for (const size_t run : chosen) {
    if (statuses[run].has_ended()) continue;
    const auto& saved = statuses[run].saved;
    const double done = saved ? static_cast<double>(saved->step) : 0;
    seconds += plans[run].seconds * (1 - done / static_cast<double>(plans[run].steps));
  }
  return seconds / at_once;
}

StudyOutlook look_ahead(const StudyJob& job) {
  const StudyPaths paths{job.out};
  StudyOutlook outlook;
  const std::optional<StudyRecord> before = read_begun_study(paths, job.study.name);
  outlook.record = make_record(job, paths, before);
  const std::string& device = outlook.record.device;
  if (before && before->device != device) outlook.device_before = before->device;
  plan_outlook(job, paths, outlook);
  outlook.speed_of = job.speed_of ? job.speed_of : measured_speeds(outlook.record.threads, device);
  const bool is_left = any_left(outlook);
  if (is_left) find_device(device);  // or throws
  outlook.plans = plan_costs(outlook.runs, is_left ? outlook.speed_of : nullptr, device);
  return outlook;
}

std::string warning_of_little_text(const StudyOutlook& outlook) {
  const double bytes = bytes_of({outlook.record.data.begin(), outlook.record.data.end()});
  if (bytes == 0) return "";
  RepeatedText repeated;
  for (const size_t run : outlook.chosen) {
    if (outlook.runs[run].is_trial) continue;
    repeated.see(static_cast<double>(outlook.plans[run].tokens) / bytes);
  }
  if (repeated.runs == 0) return "";
  return fmt::format(
      "{}, up to {:.1f} times or more: what is read again teaches less. Give a larger text with "
      "--data, or fewer steps with --set train.steps=N",
      repeated.sentence(), repeated.most);
}

StudySummary run_study(const StudyJob& job, StudyObserver& observer) {
  const double start = monotonic_seconds();
  const StudyPaths paths{job.out};
  StudySummary summary;
  StudyOutlook& outlook = summary.outlook;
  outlook = look_ahead(job);
  require_disk(paths, outlook);
  warn_of_memory(job, outlook, observer);
  tell_of_device(outlook, observer);
  if (const std::string warning = warning_of_little_text(outlook); !warning.empty()) {
    observer.on_message("warning: " + warning);
  }
  make_folder(paths.folder);
  const FolderLock lock(paths.folder);
  write_tables(paths, outlook);  // without which a folder of recipes is no study's
  make_folder(paths.recipes());
  make_folder(paths.logs());

  double next_page = monotonic_seconds() + kPageSeconds;
  const auto write = [&] {
    update_tuning(job, outlook);
    write_tables(paths, outlook);
    if (monotonic_seconds() < next_page) return;
    write_page(paths, summary);
    next_page = monotonic_seconds() + kPageSeconds;
  };
  RunnerOptions options = {.program = job.program,
                           .data = outlook.record.data,
                           .validation = outlook.record.validation,
                           .looks = model_looks(job.study),
                           .jobs = job.jobs,
                           .threads = outlook.record.threads,
                           .device = outlook.record.device};
  for (int64_t waiting = -1; count_waiting(outlook) != waiting;) {
    waiting = count_waiting(outlook);
    write();
    options.stop_after = job.stop_after - (monotonic_seconds() - start);
    const RunnerResult result = train_runs(paths, outlook.runs, outlook.plans, outlook.chosen,
                                           options, outlook.statuses, observer, write);
    summary.was_stopped = result.was_stopped;
    summary.notes.insert(summary.notes.end(), result.notes.begin(), result.notes.end());
    if (result.was_stopped || waiting == 0) break;
    StudyJob again = job;
    again.speed_of = outlook.speed_of;
    outlook = look_ahead(again);  // with what the trials have chosen
  }
  summary.notes.insert(summary.notes.end(), outlook.notes.begin(), outlook.notes.end());
  const std::vector<std::string> of_page = write_page(paths, summary);
  summary.notes.insert(summary.notes.end(), of_page.begin(), of_page.end());
  return summary;
}

}  // namespace attnres
