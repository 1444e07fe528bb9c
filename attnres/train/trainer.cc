#include "attnres/train/trainer.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "attnres/data/evaluation_batches.h"
#include "attnres/support/compute_device.h"
#include "attnres/support/machine.h"
#include "attnres/support/memory.h"
#include "attnres/support/program.h"
#include "attnres/support/progress.h"
#include "attnres/train/parallel/parallel_start.h"
#include "attnres/train/recipe/schedule.h"
#include "attnres/train/run/divergence.h"
#include "attnres/train/run/many_processes.h"
#include "attnres/train/run/one_process.h"
#include "attnres/train/run/out_of_memory.h"
#include "attnres/train/run/run_start.h"
#include "attnres/train/run_folder/run_logs.h"
#include "attnres/train/step/expert_balance.h"
#include "attnres/train/step/training_step.h"

namespace attnres {
namespace {

// A line of metrics.jsonl, but for val_loss.
Json metrics_line(const StepReport& report, const ExpertLoads& loads, const TrainingState& state) {
  Json line = {{"step", report.step},
               {"tokens", state.tokens},
               {"seconds", state.seconds},
               {"loss", report.loss},
               {"lr", report.learning_rate},
               {"grad_norm", report.gradient_norm},
               {"tokens_per_second", report.tokens_per_second}};
  if (!loads.empty()) {
    const LoadRange range = load_range(loads);
    line["expert_load_max"] = range.most;
    line["expert_load_min"] = range.least;
  }
  return line;
}

Json stamped(int64_t step, const Json& line) {
  Json whole = {{"step", step}};
  whole.update(line);
  return whole;
}

std::vector<Json> stamped(int64_t step, std::vector<Json> lines) {
  for (Json& line : lines) line = stamped(step, line);
  return lines;
}

// Of this process until now, on its GPU if it has one.
int64_t peak_bytes() {
  const int64_t on_device = peak_device_memory(compute_device());
  return on_device > 0 ? on_device : peak_resident_bytes();
}

TrainSummary summarize(const TrainJob& job, const RunText& text, const TrainingState& state) {
  TrainSummary summary;
  summary.name = job.recipe.name;
  summary.folder = job.out;
  summary.steps = state.step;
  summary.tokens = state.tokens;
  summary.seconds = state.seconds;
  summary.best_loss = state.best_loss;
  summary.best_step = state.best_step;
  summary.final_loss = state.validation_loss;
  summary.unigram_entropy =
      unigram_entropy(text.validation.counted(), text.tokenizer->vocab_size());
  summary.uniform_loss = std::log(static_cast<double>(text.tokenizer->vocab_size()));
  summary.tokens_per_second =
      state.seconds > 0 ? static_cast<double>(state.tokens) / state.seconds : 0;
  summary.peak_bytes = std::max(state.peak_bytes, peak_bytes());
  return summary;
}

// By this process alone, or those of `world`.
std::unique_ptr<RunProcesses> make_processes(const TrainJob& job, const RunText& text,
                                             Communicator* world) {
  // Also finds out, before other processes wait for this one, whether there is enough text.
  auto alone = std::make_unique<OneProcess>(job, text);
  if (world == nullptr) return alone;
  return std::make_unique<ManyProcesses>(job, share_text(job, text, *world), text.tokenizer.get(),
                                         *world);
}

// A run's steps, from where it stands to its last.
class Steps {
 public:
  Steps(const TrainJob& job, TrainObserver& observer, RunProcesses& processes)
      : config_(job.recipe.train),
        observer_(observer),
        processes_(processes),
        state_(processes.state()),
        logs_({job.out}, state_, static_cast<int>(job.recipe.model.sublayers())) {
    report_.step = state_.step;
    if (state_.best_step > 0) report_.validation_loss = state_.validation_loss;
  }

  int64_t now() const { return report_.step; }

  // False where the observer stopped them before the last. Throws Diverged.
  bool run() {
    observer_.on_begin(state_.step, config_.steps);
    for (bool stopped = false; state_.step < config_.steps && !stopped;) {
      Json line = train_one();
      const bool last = state_.step == config_.steps;
      std::vector<Json> readings;
      if (last || state_.step % config_.eval_every == 0) readings = validate(line);
      logs_.add_step(line, readings);
      observer_.on_step(report_);
      stopped = !last && observer_.should_stop();
      save(last || state_.step % config_.checkpoint_every == 0, stopped);
    }
    return state_.step == config_.steps;
  }

 private:
  // The step's line of metrics.jsonl.
  Json train_one() {
    ++report_.step;
    report_.learning_rate = learning_rate_at(config_, report_.step);
    const double start = monotonic_seconds();
    const StepResult result = processes_.run(report_.step, report_.learning_rate);
    report_.seconds = monotonic_seconds() - start;
    report_.loss = result.loss;
    report_.gradient_norm = result.gradient_norm;
    report_.tokens_per_second = static_cast<double>(result.tokens) / report_.seconds;
    state_.step = report_.step;
    state_.tokens += result.tokens;
    state_.seconds += report_.seconds;
    return metrics_line(report_, result.expert_loads, state_);
  }

  // What was read of the model on the way; adds the loss to the step's line.
  std::vector<Json> validate(Json& line) {
    state_.validation_loss = processes_.validation_loss();
    line["val_loss"] = state_.validation_loss;
    report_.validation_loss = state_.validation_loss;
    const ProbeReading reading = processes_.probe();
    report_.depth_weights = reading.depth_weights;
    if (state_.validation_loss < state_.best_loss) {
      state_.best_loss = state_.validation_loss;
      state_.best_step = state_.step;
      processes_.save_best();
    }
    return stamped(state_.step, reading.lines);
  }

  void save(bool due, bool stopped) {
    if (due && config_.sample_tokens > 0) {
      logs_.samples.append(stamped(state_.step, processes_.sample()));
    }
    state_.peak_bytes = std::max(state_.peak_bytes, peak_bytes());
    if (!due && !stopped) return;
    logs_.sync(state_);
    processes_.save_last();
  }

  const TrainConfig& config_;
  TrainObserver& observer_;
  RunProcesses& processes_;
  TrainingState& state_;
  RunLogs logs_;
  StepReport report_;
};

TrainSummary train_with(const TrainJob& job, TrainObserver& observer, Communicator* world) {
  std::unique_ptr<FolderLock> lock = prepare_run(job, observer);
  const RunText text = read_text(job, observer);
  const std::unique_ptr<RunProcesses> processes = make_processes(job, text, world);
  lock = start_run(job, text, std::move(lock), observer, *processes);
  const bool was_finished = processes->state().step == job.recipe.train.steps;
  bool stopped = false;
  Steps steps(job, observer, *processes);
  try {
    stopped = !steps.run();
  } catch (const Diverged& what) {
    fail_diverged(job, text, steps.now(), what);
  } catch (const std::exception& what) {
    if (!is_out_of_memory(what)) throw;
    fail_out_of_memory(job, steps.now(), what);
  }
  if (const std::string line = processes->end(); !line.empty()) observer.on_message(line);

  TrainSummary summary = summarize(job, text, processes->state());
  summary.was_finished = was_finished;
  summary.was_stopped = stopped;
  return summary;
}

}  // namespace

TrainSummary train(const TrainJob& job, TrainObserver& observer) {
  const ParallelConfig& parallel = job.recipe.parallel;
  require_usage(parallel.processes() == 1,
                "parallel: {}, but there is one; start as many with {} {} train ..",
                parallel.describe_processes(), mpirun_command(parallel.processes()), program());
  return train_with(job, observer, nullptr);
}

TrainSummary train(const TrainJob& job) {
  TrainObserver silent;
  return train(job, silent);
}

TrainSummary train(const TrainJob& job, TrainObserver& observer, Communicator& world) {
  require_same_job(job, world);
  world.set_time_limit(job.recipe.parallel.timeout);
  return train_with(job, observer, &world);
}

void follow_training(const TrainJob& job, Communicator& world) {
  require_same_job(job, world);
  world.set_time_limit(job.recipe.parallel.timeout);
  ManyProcesses(job, receive_text(job, world), /*tokenizer=*/nullptr, world).follow();
}

}  // namespace attnres
