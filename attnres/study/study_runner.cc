#include "attnres/study/study_runner.h"

#include <algorithm>
#include <csignal>
#include <cstring>
#include <ctime>
#include <deque>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "attnres/support/process.h"
#include "attnres/support/progress.h"

namespace attnres {
namespace fs = std::filesystem;
namespace {

constexpr int kInterruptedCode = 130;  // of a program that saved itself; see app/main.cc

// Why a process ended, by the last thing that it said.
std::string reason_of(int exit_code, const fs::path& log) {
  if (exit_code > 128 && exit_code != kInterruptedCode) {
    const int signal = exit_code - 128;
    return fmt::format("ended by signal {} ({}){}", signal, ::strsignal(signal),
                       signal == SIGKILL ? ", as where memory runs out" : "");
  }
  const std::string text = fs::exists(log) ? read_file(log) : "";
  constexpr std::string_view kError = "attnres: error: ";
  if (const size_t at = text.rfind(kError); at != std::string::npos) {
    std::string error = text.substr(at + kError.size());
    while (error.ends_with('\n')) error.pop_back();
    std::replace(error.begin(), error.end(), '\n', ' ');
    return error;
  }
  if (exit_code == kInterruptedCode) return "was interrupted from elsewhere";
  return fmt::format("ended with code {}; see {}", exit_code, log.string());
}

// The processors of a job, or none where there are too few for all.
std::vector<int> cpus_of(int job, const RunnerOptions& options) {
  const std::vector<int> all = usable_cpus();
  if (options.jobs == 1 || options.jobs * options.threads > std::ssize(all)) return {};
  const auto first = all.begin() + job * options.threads;
  return {first, first + options.threads};
}

class Runner {
 public:
  Runner(const StudyPaths& paths, const std::vector<StudyRun>& runs,
         const std::vector<RunPlan>& plans, const std::vector<size_t>& chosen,
         const RunnerOptions& options, std::vector<RunStatus>& statuses, StudyObserver& observer)
      : paths_(paths),
        runs_(runs),
        plans_(plans),
        chosen_(chosen),
        options_(options),
        statuses_(statuses),
        observer_(observer),
        jobs_(static_cast<size_t>(options.jobs)) {
    for (const size_t run : chosen) {
      if (statuses[run].state != RunState::done) waiting_.push_back(run);
    }
    flops_before_ = flops_done();
  }

  bool run(const std::function<void()>& on_change) {
    while (true) {
      bool changed = take_back_ended();
      if (!stopping_ && should_stop()) stop();
      if (!stopping_) changed = start_waiting() || changed;
      if (changed) on_change();
      if (at_work() == 0) return !waiting_.empty() || stopped_some_;
      observer_.on_progress(progress());
      nap();
    }
  }

 private:
  struct Job {
    size_t run = 0;
    std::unique_ptr<ChildProcess> process;  // null: free
  };

  bool should_stop() {
    return observer_.should_stop() || monotonic_seconds() - start_ >= options_.stop_after;
  }

  void stop() {
    stopping_ = true;
    for (Job& job : jobs_) {
      if (job.process) job.process->interrupt();
    }
  }

  int64_t at_work() const {
    return std::count_if(jobs_.begin(), jobs_.end(), [](const Job& job) { return !!job.process; });
  }

  // Returns whether one had.
  bool take_back_ended() {
    bool any = false;
    for (Job& job : jobs_) {
      if (!job.process || job.process->is_running()) continue;
      judge(job.run, job.process->exit_code());
      job.process.reset();
      any = true;
    }
    return any;
  }

  void judge(size_t run, int exit_code) {
    const std::string& name = runs_[run].name;
    RunStatus& status = statuses_[run];
    status = look_at_run(paths_, runs_[run]);
    if (status.state == RunState::done) {
      observer_.on_message(
          fmt::format("{}: done, validation loss {:.4f}", name, status.saved->validation_loss));
    } else if (stopping_ && exit_code == kInterruptedCode) {
      stopped_some_ = true;
    } else {
      status.state = RunState::failed;
      status.error = reason_of(exit_code, paths_.log(name));
      observer_.on_message(fmt::format("{}: failed: {}", name, status.error));
    }
  }

  bool start_waiting() {
    bool any = false;
    for (size_t job = 0; job < jobs_.size() && !waiting_.empty(); ++job) {
      if (jobs_[job].process) continue;
      start(static_cast<int>(job), waiting_.front());
      waiting_.pop_front();
      any = true;
    }
    return any;
  }

  void start(int job, size_t run) {
    const std::string& name = runs_[run].name;
    write_file(paths_.recipe(name), recipe_to_json(runs_[run].recipe).dump(2) + "\n");
    std::vector<std::string> arguments = {"train",
                                          "--recipe",
                                          paths_.recipe(name).string(),
                                          "--out",
                                          paths_.run(name).folder.string(),
                                          "--resume",
                                          "--threads",
                                          std::to_string(options_.threads)};
    if (!options_.data.empty()) arguments.emplace_back("--data");
    arguments.insert(arguments.end(), options_.data.begin(), options_.data.end());
    statuses_[run].error.clear();
    if (statuses_[run].state == RunState::failed) statuses_[run].state = RunState::unfinished;
    jobs_[static_cast<size_t>(job)] = {
        run, std::make_unique<ChildProcess>(ProcessOptions{.program = options_.program,
                                                           .arguments = arguments,
                                                           .output = paths_.log(name),
                                                           .cpus = cpus_of(job, options_)})};
  }

  // Of a run that may be at work.
  int64_t steps_done(size_t run) const {
    const auto& saved = statuses_[run].saved;
    const int64_t least = saved ? saved->step : 0;
    const bool works = std::any_of(jobs_.begin(), jobs_.end(),
                                   [&](const Job& job) { return job.process && job.run == run; });
    return works ? std::max(least, logged_steps(paths_.run(runs_[run].name))) : least;
  }

  double share_done(size_t run) const {
    return static_cast<double>(steps_done(run)) / static_cast<double>(plans_[run].steps);
  }

  double flops_done() const {
    double flops = 0;
    for (const size_t run : chosen_) flops += plans_[run].flops * share_done(run);
    return flops;
  }

  StudyProgress progress() const {
    StudyProgress now;
    double left = 0, seconds = 0;
    for (const size_t run : chosen_) {
      ++now.runs;
      if (statuses_[run].state == RunState::done) ++now.done;
      if (statuses_[run].state == RunState::failed && !is_waiting(run)) {
        ++now.failed;
        continue;
      }
      left += plans_[run].flops * (1 - share_done(run));
      seconds += plans_[run].seconds * (1 - share_done(run));
    }
    const double done = flops_done(), made = done - flops_before_;
    now.share = done / (done + left);
    now.seconds_left = made > 0 ? left * (monotonic_seconds() - start_) / made
                                : seconds / static_cast<double>(options_.jobs);
    for (const Job& job : jobs_) {
      if (!job.process) continue;
      now.at_work.push_back({runs_[job.run].name, steps_done(job.run), plans_[job.run].steps});
    }
    return now;
  }

  bool is_waiting(size_t run) const {
    return std::find(waiting_.begin(), waiting_.end(), run) != waiting_.end();
  }

  static void nap() {
    constexpr timespec kTime = {.tv_sec = 0, .tv_nsec = 50'000'000};
    ::nanosleep(&kTime, nullptr);
  }

  const StudyPaths& paths_;
  const std::vector<StudyRun>& runs_;
  const std::vector<RunPlan>& plans_;
  const std::vector<size_t>& chosen_;
  const RunnerOptions& options_;
  std::vector<RunStatus>& statuses_;
  StudyObserver& observer_;
  std::vector<Job> jobs_;
  std::deque<size_t> waiting_;
  bool stopping_ = false, stopped_some_ = false;
  const double start_ = monotonic_seconds();
  double flops_before_ = 0;
};

}  // namespace

bool train_runs(const StudyPaths& paths, const std::vector<StudyRun>& runs,
                const std::vector<RunPlan>& plans, const std::vector<size_t>& chosen,
                const RunnerOptions& options, std::vector<RunStatus>& statuses,
                StudyObserver& observer, const std::function<void()>& on_change) {
  return Runner(paths, runs, plans, chosen, options, statuses, observer).run(on_change);
}

}  // namespace attnres
