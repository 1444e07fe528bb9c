#include "attnres/train/trainer.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/isfinite.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "attnres/data/train_batches.h"
#include "attnres/pretrained/model_directory.h"
#include "attnres/support/format.h"
#include "attnres/support/machine.h"
#include "attnres/support/progress.h"
#include "attnres/train/expert_balance.h"
#include "attnres/train/parallel_start.h"
#include "attnres/train/parallel_steps.h"
#include "attnres/train/run_logs.h"
#include "attnres/train/run_start.h"
#include "attnres/train/schedule.h"
#include "attnres/train/training_step.h"
#include "attnres/train/validation.h"

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

void save(const RunPaths& paths, Training& training, const RunText& text, RunLogs& logs,
          int64_t context) {
  // The next step's loss would say so too, but then this checkpoint had replaced a good one.
  for (const Parameter& p : training.model->parameters().all()) {
    if (!p.tensor.isfinite().all().item<bool>()) {
      throw Diverged("the weights are no longer finite");
    }
  }
  logs.sync(training.state);
  save_checkpoint(paths.last(), training, *text.tokenizer, context);
}

[[noreturn]] void fail_diverged(int64_t step, const Diverged& what, const RunPaths& paths) {
  const std::string saved = std::filesystem::exists(paths.last())
                                ? paths.last().string() + " is the last good checkpoint"
                                : "there is no earlier checkpoint";
  fail(
      "step {}: {}; training stopped, {}. Try a lower train.learning_rate or a longer "
      "train.warmup",
      step, what.what(), saved);
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
  summary.tokens_per_second =
      state.seconds > 0 ? static_cast<double>(state.tokens) / state.seconds : 0;
  summary.peak_bytes = std::max(state.peak_bytes, peak_resident_bytes());
  return summary;
}

std::vector<std::filesystem::path> traces_of(const TrainJob& job) {
  std::vector<std::filesystem::path> files = {RunPaths{job.out}.trace()};
  if (!job.trace.empty()) files.push_back(job.trace);
  return files;
}

// Computes a run's steps.
class Steps {
 public:
  virtual ~Steps() = default;
  virtual StepResult run(int64_t step, double learning_rate) = 0;
  // Afterwards the run's model and optimizer are as the last step has left them.
  virtual void bring_home() {}
  // There is no further step. What it has taken, in a line, or nothing.
  virtual std::string end() { return ""; }
};

class StepsOfOneProcess : public Steps {
 public:
  StepsOfOneProcess(Training& training, const TrainBatches& batches, const TrainConfig& config)
      : batches_(batches), config_(config), step_(*training.model, training.optimizer, config) {}

  StepResult run(int64_t step, double learning_rate) override {
    const int64_t rows = config_.batch_size / config_.accumulate;
    for (int64_t part = 0; part < config_.accumulate; ++part) {
      step_.forward_backward(batches_.batch(step, part, rows));
    }
    return step_.update(learning_rate);
  }

 private:
  const TrainBatches& batches_;
  const TrainConfig& config_;
  TrainingStep step_;
};

class StepsOfManyProcesses : public Steps {
 public:
  StepsOfManyProcesses(const TrainJob& job, Training& training, const TrainBatches& batches,
                       Communicator& world)
      : training_(training), steps_(job.recipe, training.model->vocab_size(), batches, world) {
    steps_.trace_into(traces_of(job));
    steps_.scatter(training);
  }

  StepResult run(int64_t step, double learning_rate) override {
    is_home_ = false;
    return steps_.run(step, learning_rate);
  }
  void bring_home() override {
    if (!is_home_) steps_.gather(training_);
    is_home_ = true;
  }
  std::string end() override {
    const ParallelTraffic traffic = steps_.end();
    const auto sent = [&](Traffic kind) {
      return format_bytes(static_cast<double>(traffic.bytes_sent[static_cast<int>(kind)]));
    };
    const auto& peaks = traffic.peak_received_bytes;
    return fmt::format(
        "sent: {} of sealed tensors and {} of open ones, {} and {} of their gradients; {} within "
        "tensor groups; {} of parameters' gradients. Received copies took {} at most on a rank",
        sent(Traffic::sealed), sent(Traffic::open), sent(Traffic::sealed_gradient),
        sent(Traffic::open_gradient), sent(Traffic::tensor_group),
        sent(Traffic::parameter_gradient),
        format_bytes(static_cast<double>(*std::max_element(peaks.begin(), peaks.end()))));
  }

 private:
  Training& training_;
  ParallelSteps steps_;
  bool is_home_ = true;
};

std::unique_ptr<Steps> make_steps(const TrainJob& job, const RunText& text,
                                  const TrainBatches& batches, Training& training,
                                  Communicator* world) {
  if (world == nullptr) {
    return std::make_unique<StepsOfOneProcess>(training, batches, job.recipe.train);
  }
  share_text(job, text, training.model->vocab_size(), *world);
  return std::make_unique<StepsOfManyProcesses>(job, training, batches, *world);
}

// By the processes of `world`, or this one alone where that is null.
TrainSummary train_with(const TrainJob& job, TrainObserver& observer, Communicator* world) {
  const TrainConfig& config = job.recipe.train;
  const RunPaths paths{job.out};
  std::unique_ptr<FolderLock> lock = prepare_run(job, observer);
  const RunText text = read_text(job, observer);
  // Both check, before anything is written, that there is enough text.
  const TrainBatches batches = batches_of(text.train, job.recipe, vocabulary_of(*text.tokenizer));
  const Validation validation(text, config);

  StartedRun run = start_run(job, text, std::move(lock), observer);
  const Transformer& model = *run.training.model;
  TrainingState& state = run.training.state;
  RunLogs logs(paths, state, model.sublayers());
  const std::unique_ptr<Steps> steps = make_steps(job, text, batches, run.training, world);

  const int64_t tokens = config.batch_size * config.context;
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
      const StepResult result = steps->run(report.step, report.learning_rate);
      report.seconds = monotonic_seconds() - start;
      report.loss = result.loss;
      report.gradient_norm = result.gradient_norm;
      report.tokens_per_second = static_cast<double>(tokens) / report.seconds;
      state.step = report.step;
      state.tokens += tokens;
      state.seconds += report.seconds;
      Json line = metrics_line(report, result.expert_loads, state);
      std::vector<Json> readings;

      const bool last = state.step == config.steps;
      if (last || state.step % config.eval_every == 0) {
        steps->bring_home();
        state.validation_loss = validation.loss(model);
        line["val_loss"] = state.validation_loss;
        report.validation_loss = state.validation_loss;
        const ProbeReading reading = validation.probe(model);
        report.depth_weights = reading.depth_weights;
        readings = stamped(state.step, reading.lines);
        if (state.validation_loss < state.best_loss) {
          state.best_loss = state.validation_loss;
          state.best_step = state.step;
          save_model_folder(paths.best(), model, *text.tokenizer, config.context);
        }
      }
      logs.add_step(line, readings);
      observer.on_step(report);

      const bool due = last || state.step % config.checkpoint_every == 0;
      stopped = !last && observer.should_stop();
      if (due || stopped) steps->bring_home();
      if (due && config.sample_tokens > 0) {
        logs.samples.append(stamped(state.step, validation.sample(model)));
      }
      state.peak_bytes = std::max(state.peak_bytes, peak_resident_bytes());
      if (due || stopped) save(paths, run.training, text, logs, config.context);
    }
  } catch (const Diverged& what) {
    fail_diverged(report.step, what, paths);
  }
  if (const std::string line = steps->end(); !line.empty()) observer.on_message(line);

  TrainSummary summary = summarize(job, text, state);
  summary.was_finished = was_finished;
  summary.was_stopped = stopped;
  return summary;
}

}  // namespace

TrainSummary train(const TrainJob& job, TrainObserver& observer) {
  const ParallelConfig& parallel = job.recipe.parallel;
  require_usage(parallel.processes() == 1,
                "parallel: {}, but there is one; start as many with mpirun -n {} attnres train ..",
                parallel.describe_processes(), parallel.processes());
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
  const SharedText text = receive_text(job, world);
  ParallelSteps steps(job.recipe, text.embeddings,
                      batches_of(text.sources, job.recipe, text.vocabulary), world);
  steps.trace_into(traces_of(job));
  steps.follow();
}

}  // namespace attnres
