#include "app/study_shown.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "attnres/study/study_page.h"
#include "attnres/support/error.h"
#include "attnres/support/format.h"
#include "attnres/support/interrupt.h"
#include "attnres/support/progress.h"
#include "attnres/support/terminal.h"

namespace attnres {
namespace {

// A count of runs that are in a state, where there are any: ", 2 failed".
std::string count_of(const std::vector<RunStatus>& statuses, RunState state) {
  const auto count = std::count_if(statuses.begin(), statuses.end(),
                                   [&](const RunStatus& run) { return run.state == state; });
  return count == 0 ? "" : fmt::format(", {} {}", count, name_of(state));
}

size_t width_of_names(const std::vector<StudyRun>& runs) {
  size_t width = 0;
  for (const StudyRun& run : runs) width = std::max(width, run.name.size());
  return width;
}

// Shows the whole grid on a line of standard error, and stops it when the user does.
class ShownStudy : public StudyObserver {
 public:
  void on_message(std::string_view line) override { line_.message(line); }
  void on_progress(const StudyProgress& progress) override { line_.update(describe(progress)); }
  bool should_stop() override { return interrupted(); }

 private:
  static std::string describe(const StudyProgress& progress) {
    std::string text = fmt::format("{}/{} runs | {:.0f} % | {} left", progress.done, progress.runs,
                                   100 * progress.share, format_duration(progress.seconds_left));
    if (progress.failed > 0) text += fmt::format(" | {} failed", progress.failed);
    for (const RunAtWork& run : progress.at_work) {
      text += fmt::format(" | {} step {}/{}", run.name, run.step, run.steps);
    }
    return text;
  }

  InterruptGuard interrupt_;
  ProgressLine line_;
};

StudySummary run_study_shown(const StudyJob& job) {
  ShownStudy shown;
  return run_study(job, shown);
}

// "2.0312 +- 0.0021", or what there is of it.
std::string loss_text(const ArmResult& arm) {
  if (arm.done == 0) return "-";
  const std::string mean = fmt::format("{:.4f}", arm.mean_loss);
  return std::isfinite(arm.loss_deviation) ? fmt::format("{} +- {:.4f}", mean, arm.loss_deviation)
                                           : mean;
}

void print_arms(const StudyOutlook& outlook) {
  const std::vector<ArmResult> results = arm_results(outlook.reached());
  std::vector<std::string> names;
  size_t width = 3;
  for (const ArmResult& result : results) {
    std::string& name = names.emplace_back();
    for (const std::string& arm : result.arms) name += (name.empty() ? "" : "-") + arm;
    width = std::max(width, name.size());
  }
  fmt::print("{:<{}}  {:>5}  {:<18}  {}\n", "arm", width, "runs", "validation loss", "tokens/s");
  for (size_t i = 0; i < results.size(); ++i) {
    const ArmResult& result = results[i];
    fmt::print("{:<{}}  {:>5}  {:<18}  {}\n", names[i], width,
               fmt::format("{}/{}", result.done, result.runs), loss_text(result),
               result.done > 0 ? format_count(result.tokens_per_second) : "-");
  }
}

void print_summary(const StudyJob& job, const StudySummary& summary) {
  const StudyPaths paths{job.out};
  // What tiny runs reached and how fast tells nothing.
  if (job.grid.smoke) {
    print_wrapped(
        "Every run was tiny, to see whether all of it works: that tells nothing of how the arms "
        "compare or what they cost.");
  } else {
    print_arms(summary.outlook);
    if (summary.sentences.size() <= kMostSentences) {
      for (const std::string& sentence : summary.sentences) print_wrapped(sentence);
    }
  }
  std::string counts = counted(std::ssize(summary.outlook.runs), "run");
  for (const RunState state : {RunState::done, RunState::diverged, RunState::failed,
                               RunState::unfinished, RunState::missing, RunState::waiting}) {
    counts += count_of(summary.outlook.statuses, state);
  }
  fmt::print("{}\n", counts);
  fmt::print("tables: {}, {}\n", paths.runs_csv().string(), paths.arms_csv().string());
  if (!summary.report.empty()) fmt::print("report: {}\n", summary.report.string());
}

// Runs that failed make the command fail, once all else is done and said.
void require_no_failure(const StudyOutlook& outlook) {
  std::string list;
  int64_t failed = 0;
  for (size_t i = 0; i < outlook.runs.size(); ++i) {
    if (outlook.statuses[i].state != RunState::failed) continue;
    ++failed;
    list += fmt::format("\n  {}: {}", outlook.runs[i].name, outlook.statuses[i].error);
  }
  require(
      failed == 0,
      "{} failed:{}\nthe others stand. The same command tries {} again from the last checkpoint",
      counted(failed, "run"), list, failed == 1 ? "it" : "them");
}

}  // namespace

void print_plan(const StudyJob& job) {
  const StudyOutlook outlook = look_ahead(job);
  const size_t width = width_of_names(outlook.runs);
  double flops = 0, tokens = 0;
  fmt::print("{:<{}}  {:<10}  {:>9}  {:>7}  {:>8}  {:>9}  {:>7}\n", "run", width, "state", "steps",
             "tokens", "FLOPs", "memory", "time");
  for (const size_t i : outlook.chosen) {
    const RunPlan& plan = outlook.plans[i];
    const auto& saved = outlook.statuses[i].saved;
    flops += plan.flops;
    tokens += static_cast<double>(plan.tokens);
    fmt::print("{:<{}}  {:<10}  {:>9}  {:>7}  {:>8.2e}  {:>9}  {:>7}\n", outlook.runs[i].name,
               width, name_of(outlook.statuses[i].state),
               fmt::format("{}/{}", saved ? saved->step : 0, plan.steps),
               format_count(static_cast<double>(plan.tokens)), plan.flops,
               format_bytes(static_cast<double>(plan.bytes)),
               std::isnan(plan.seconds) ? "-" : format_duration(plan.seconds));
  }
  const bool is_done = std::all_of(outlook.chosen.begin(), outlook.chosen.end(),
                                   [&](size_t i) { return outlook.statuses[i].has_ended(); });
  fmt::print("{}: {} tokens, {:.2e} FLOPs; {}\n", counted(std::ssize(outlook.chosen), "run"),
             format_count(tokens), flops,
             is_done
                 ? "nothing is left to train"
                 : fmt::format("about {} left, {} at once on {} each",
                               format_duration(outlook.seconds(job.jobs)), counted(job.jobs, "run"),
                               counted(outlook.record.threads, "thread")));
  if (const std::string warning = warning_of_little_text(outlook); !warning.empty()) {
    fmt::print("warning: {}\n", warning);
  }
}

void show_study(const StudyJob& job, bool as_json) {
  const StudySummary summary = run_study_shown(job);
  for (const std::string& note : summary.notes) fmt::print(stderr, "note: {}\n", note);
  if (as_json) {
    fmt::print("{}\n", study_json(summary.outlook.reached()).dump());
  } else {
    print_summary(job, summary);
  }
  if (summary.was_stopped && interrupted()) {
    throw Interrupted("interrupted; every run is saved. The same command goes on");
  }
  require_no_failure(summary.outlook);
  if (summary.was_stopped) {
    fmt::print(stderr, "stopped after {}; every run is saved. The same command goes on\n",
               format_duration(job.stop_after));
  }
}

}  // namespace attnres
