#include "attnres/train/trainer.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "attnres/data/evaluation_batches.h"
#include "attnres/support/machine.h"
#include "attnres/support/program.h"
#include "attnres/support/progress.h"
#include "attnres/train/divergence.h"
#include "attnres/train/expert_balance.h"
#include "attnres/train/many_processes.h"
#include "attnres/train/one_process.h"
#include "attnres/train/parallel_start.h"
#include "attnres/train/run_logs.h"
#include "attnres/train/run_start.h"
#include "attnres/train/schedule.h"
#include "attnres/train/training_step.h"

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
  summary.peak_bytes = std::max(state.peak_bytes, peak_resident_bytes());
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

TrainSummary train_with(const TrainJob& job, TrainObserver& observer, Communicator* world) {
  const TrainConfig& config = job.recipe.train;
  const RunPaths paths{job.out};
  std::unique_ptr<FolderLock> lock = prepare_run(job, observer);
  const RunText text = read_text(job, observer);
  const std::unique_ptr<RunProcesses> processes = make_processes(job, text, world);
  lock = start_run(job, text, std::move(lock), observer, *processes);
  TrainingState& state = processes->state();
  RunLogs logs(paths, state, static_cast<int>(job.recipe.model.sublayers()));

  StepReport report;
  report.step = state.step;
  if (state.best_step > 0) report.validation_loss = state.validation_loss;
  const bool was_finished = state.step == config.steps;
  bool stopped = false;
  observer.on_begin(state.step, config.steps);
  try {
    while (state.step < config.steps && !stopped) {
      ++report.step;
      report.learning_rate = learning_rate_at(config, report.step);
      const double start = monotonic_seconds();
      const StepResult result = processes->run(report.step, report.learning_rate);
      report.seconds = monotonic_seconds() - start;
      report.loss = result.loss;
      report.gradient_norm = result.gradient_norm;
      report.tokens_per_second = static_cast<double>(result.tokens) / report.seconds;
      state.step = report.step;
      state.tokens += result.tokens;
      state.seconds += report.seconds;
      Json line = metrics_line(report, result.expert_loads, state);
      std::vector<Json> readings;

      const bool last = state.step == config.steps;
      if (last || state.step % config.eval_every == 0) {
        state.validation_loss = processes->validation_loss();
        line["val_loss"] = state.validation_loss;
        report.validation_loss = state.validation_loss;
        const ProbeReading reading = processes->probe();
        report.depth_weights = reading.depth_weights;
        readings = stamped(state.step, reading.lines);
        if (state.validation_loss < state.best_loss) {
          state.best_loss = state.validation_loss;
          state.best_step = state.step;
          processes->save_best();
        }
      }
      logs.add_step(line, readings);
      observer.on_step(report);

      const bool due = last || state.step % config.checkpoint_every == 0;
      stopped = !last && observer.should_stop();
      if (due && config.sample_tokens > 0) {
        logs.samples.append(stamped(state.step, processes->sample()));
      }
      state.peak_bytes = std::max(state.peak_bytes, peak_resident_bytes());
      if (due || stopped) {
        logs.sync(state);
        processes->save_last();
      }
    }
  } catch (const Diverged& what) {
    fail_diverged(job, text, report.step, what);
  }
  if (const std::string line = processes->end(); !line.empty()) observer.on_message(line);

  TrainSummary summary = summarize(job, text, state);
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
  require_usage(job.trace.empty(), "--trace shows what several processes do; there is one");
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
