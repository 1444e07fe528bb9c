#include "attnres/study/study_runner.h"

#include <algorithm>
#include <csignal>
#include <cstring>
#include <ctime>
#include <deque>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "attnres/data/corpus.h"
#include "attnres/study/study_start.h"
#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "attnres/support/process.h"
#include "attnres/support/progress.h"

namespace attnres {
namespace fs = std::filesystem;
namespace {

// Why a process ended, by the last thing that it said.
std::string reason_of(int exit_code, const fs::path& log) {
  if (exit_code > 128 && exit_code != kInterruptedCode) {
    const int signal = exit_code - 128;
    return fmt::format("ended by signal {} ({}){}", signal, ::strsignal(signal),
                       signal == SIGKILL ? ", as where memory runs out" : "");
  }
  const std::string text = path_exists(log) ? read_file(log) : "";
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
    for (size_t run = 0; run < runs.size(); ++run) by_name_[runs[run].name] = run;
    for (const size_t run : chosen) {
      if (can_be_trained(run)) waiting_.push_back(run);
      look_into(run);
    }
    flops_before_ = flops_done();
  }

  RunnerResult run(const std::function<void()>& on_change) {
    while (true) {
      bool changed = take_back_ended();
      if (!stopping_ && should_stop()) stop();
      if (!stopping_) changed = start_waiting() || changed;
      if (changed) on_change();
      if (at_work() == 0 && (stopping_ || (waiting_.empty() && to_look_into_.empty()))) break;
      observer_.on_progress(progress());
      nap();
    }
    result_.was_stopped = result_.was_stopped || !waiting_.empty() || !to_look_into_.empty();
    return result_;
  }

 private:
  struct Job {
    size_t run = 0;
    std::unique_ptr<ChildProcess> process;  // null: free
    const ModelLook* look = nullptr;        // null where it trains
    int64_t logged_before = 0;              // steps in the run's log when the process began
  };

  bool can_be_trained(size_t run) const {
    return !statuses_[run].has_ended() && !runs_[run].waits && runs_[run].obstacle.empty();
  }

  // A run that is done, as far as nobody has yet.
  void look_into(size_t run) {
    if (runs_[run].is_trial || statuses_[run].state != RunState::done) return;
    for (const ModelLook& look : options_.looks) {
      if (!path_exists(kept(look, run))) to_look_into_.emplace_back(run, &look);
    }
  }

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
      const int exit_code = job.process->exit_code();
      if (job.look) {
        keep(*job.look, job.run, exit_code);
      } else {
        judge(job.run, exit_code);
      }
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
      look_into(run);
    } else if (stopping_ && exit_code == kInterruptedCode) {
      result_.was_stopped = true;
    } else {
      const bool diverged = runs_[run].is_trial && exit_code == kDivergedCode;
      fail_run(run, reason_of(exit_code, paths_.log(name)),
               diverged ? RunState::diverged : RunState::failed);
    }
  }

  void fail_run(size_t run, const std::string& error, RunState state = RunState::failed) {
    statuses_[run].state = state;
    statuses_[run].error = error;
    observer_.on_message(fmt::format("{}: {}: {}", runs_[run].name, name_of(state), error));
  }

  // What the command printed becomes a file of the run, whole or not at all.
  void keep(const ModelLook& look, size_t run, int exit_code) {
    if (stopping_ && exit_code == kInterruptedCode) {
      result_.was_stopped = true;
      return;
    }
    const fs::path output = log_of(look, run, ".json"), errors = log_of(look, run, ".log");
    try {
      require(exit_code == 0, "{}", reason_of(exit_code, errors));
      const std::string text = read_file(output);
      parse_json(text, output.string());
      write_file(kept(look, run), text);
      fs::remove(output);
      fs::remove(errors);
    } catch (const Error& error) {
      result_.notes.push_back(
          fmt::format("{}: could not be {}: {}", runs_[run].name, look.done(), error.what()));
    }
  }
  fs::path kept(const ModelLook& look, size_t run) const {
    return paths_.run(runs_[run].name).folder / look.file_name();
  }
  fs::path log_of(const ModelLook& look, size_t run, const char* extension) const {
    const std::string what = fs::path(look.file_name()).stem().string();
    return paths_.logs() / fmt::format("{}.{}{}", runs_[run].name, what, extension);
  }

  bool start_waiting() {
    bool any = false;
    for (size_t job = 0; job < jobs_.size(); ++job) {
      if (jobs_[job].process) continue;
      if (!to_look_into_.empty()) {
        const auto [run, look] = to_look_into_.front();
        to_look_into_.pop_front();
        start_look(static_cast<int>(job), run, *look);
      } else if (const std::optional<size_t> run = next_run()) {
        start(static_cast<int>(job), *run);
        any = true;
      }
    }
    return any;
  }

  // The first that waits whose weights to begin with are there, taken out of those that wait. Those
  // that wait for a run which has failed, have failed.
  std::optional<size_t> next_run() {
    for (auto at = waiting_.begin(); at != waiting_.end();) {
      const size_t run = *at;
      const std::string& from = runs_[run].from;
      const bool is_ready = from.empty() || has_begun(run) || status_of(from).has_ended();
      const bool is_hopeless = !is_ready && !may_end(by_name_.at(from));
      if (!is_ready && !is_hopeless) {
        ++at;
        continue;
      }
      waiting_.erase(at);
      if (is_ready) return run;
      fail_run(run, fmt::format("begins with the weights of {}, which has failed", from));
      at = waiting_.begin();  // others may begin with this one
    }
    return std::nullopt;
  }

  const RunStatus& status_of(const std::string& name) const { return statuses_[by_name_.at(name)]; }
  bool has_begun(size_t run) const { return path_exists(paths_.run(runs_[run].name).run_json()); }
  // Whether a run may still end.
  bool may_end(size_t run) const { return is_waiting(run) || is_at_work(run); }

  // Weights that were turned for a run do not say what text they are of.
  std::vector<std::string> texts_of(const StudyRun& run) const {
    if (!options_.data.empty() || run.from.empty()) return options_.data;
    std::vector<std::string> texts;
    for (const fs::path& path : default_corpus_paths()) texts.push_back(path.string());
    return texts;
  }

  void start(int job, size_t run) {
    const std::string& name = runs_[run].name;
    write_file(paths_.recipe(name), recipe_to_json(runs_[run].recipe).dump(2) + "\n");
    std::vector<std::string> arguments = {"train",
                                          "--recipe",
                                          paths_.recipe(name).string(),
                                          "--out",
                                          paths_.run(name).folder.string(),
                                          "--threads",
                                          std::to_string(options_.threads)};
    name_device(arguments);
    const auto add = [&](const char* option, const std::vector<std::string>& values) {
      if (!values.empty()) arguments.emplace_back(option);
      arguments.insert(arguments.end(), values.begin(), values.end());
    };
    add("--data", texts_of(runs_[run]));
    add("--validation", options_.validation);
    if (runs_[run].from.empty() || has_begun(run)) {
      arguments.emplace_back("--resume");
    } else {
      try {
        const Recipe& before = runs_[by_name_.at(runs_[run].from)].recipe;
        add("--from", {weights_to_begin_with(paths_, runs_[run], before).string()});
      } catch (const Error& error) {
        return fail_run(run, error.what());
      }
    }
    statuses_[run].error.clear();
    if (statuses_[run].state == RunState::failed) statuses_[run].state = RunState::unfinished;
    start_process(job, run, arguments, paths_.log(name));
  }

  void name_device(std::vector<std::string>& arguments) const {
    if (options_.device != "cpu") arguments.insert(arguments.end(), {"--device", options_.device});
  }

  void start_look(int job, size_t run, const ModelLook& look) {
    std::vector<std::string> arguments =
        look.command(runs_[run], paths_.run(runs_[run].name).folder);
    arguments.insert(arguments.end(), {"--threads", std::to_string(options_.threads)});
    name_device(arguments);
    start_process(job, run, arguments, log_of(look, run, ".json"), log_of(look, run, ".log"));
    jobs_[static_cast<size_t>(job)].look = &look;
  }

  void start_process(int job, size_t run, const std::vector<std::string>& arguments,
                     const fs::path& output, const fs::path& errors = {}) {
    const int64_t logged = logged_steps(paths_.run(runs_[run].name));
    jobs_[static_cast<size_t>(job)] = {
        run,
        std::make_unique<ChildProcess>(ProcessOptions{.program = options_.program,
                                                      .arguments = arguments,
                                                      .output = output,
                                                      .errors = errors,
                                                      .cpus = cpus_of(job, options_)}),
        /*look=*/nullptr, logged};
  }

  // Steps done of a run that may be at work. What an earlier process logged beyond its checkpoint
  // is done again.
  int64_t steps_done(size_t run) const {
    const auto& saved = statuses_[run].saved;
    const int64_t least = saved ? saved->step : 0;
    const Job* job = job_of(run);
    if (job == nullptr) return least;
    const int64_t logged = logged_steps(paths_.run(runs_[run].name));
    return logged == job->logged_before ? least : std::max(least, logged);
  }

  // That trains it now, or null.
  const Job* job_of(size_t run) const {
    const auto found = std::find_if(jobs_.begin(), jobs_.end(), [&](const Job& job) {
      return job.process && !job.look && job.run == run;
    });
    return found == jobs_.end() ? nullptr : &*found;
  }
  bool is_at_work(size_t run) const { return job_of(run) != nullptr; }

  double share_done(size_t run) const {
    if (statuses_[run].has_ended()) return 1;
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
      if (statuses_[run].has_ended()) {
        ++now.done;
        continue;
      }
      if (statuses_[run].state == RunState::failed && !is_waiting(run)) {
        ++now.failed;
        continue;
      }
      left += plans_[run].flops * (1 - share_done(run));
      seconds += plans_[run].seconds * (1 - share_done(run));
    }
    const double done = flops_done(), made = done - flops_before_;
    now.share = left > 0 ? done / (done + left) : 1;
    now.seconds_left =
        made > 0 ? left * (monotonic_seconds() - start_) / made
                 : seconds / runs_side_by_side(options_.jobs, options_.threads, options_.device);
    for (const Job& job : jobs_) {
      if (!job.process || job.look) continue;
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
  std::map<std::string, size_t> by_name_;
  std::deque<size_t> waiting_;
  std::deque<std::pair<size_t, const ModelLook*>> to_look_into_;
  bool stopping_ = false;
  RunnerResult result_;
  const double start_ = monotonic_seconds();
  double flops_before_ = 0;
};

}  // namespace

RunnerResult train_runs(const StudyPaths& paths, const std::vector<StudyRun>& runs,
                        const std::vector<RunPlan>& plans, const std::vector<size_t>& chosen,
                        const RunnerOptions& options, std::vector<RunStatus>& statuses,
                        StudyObserver& observer, const std::function<void()>& on_change) {
  return Runner(paths, runs, plans, chosen, options, statuses, observer).run(on_change);
}

}  // namespace attnres
