// A run by one process, which has the whole model.
#pragma once

#include <optional>
#include <string>

#include "attnres/data/train_batches.h"
#include "attnres/train/run/run_processes.h"
#include "attnres/train/run/step_trace.h"
#include "attnres/train/step/validation.h"
#include "attnres/train/text/run_text.h"
#include "attnres/train/train_job.h"

namespace attnres {

class OneProcess : public RunProcesses {
 public:
  // Job and text must outlive it. Throws Error where there is not enough text.
  OneProcess(const TrainJob& job, const RunText& text);

  void begin(FirstWeights weights) override;
  void check_folder() override {}
  TrainingState& state() override { return training_->state; }
  StepResult run(int64_t step, double learning_rate) override;
  double validation_loss() override { return validation_.loss(*training_->model); }
  ProbeReading probe() override { return validation_.probe(*training_->model); }
  Json sample() override { return validation_.sample(*training_->model); }
  void save_last() override;
  void save_best() override;
  std::string end() override { return ""; }

 private:
  StepResult update(int64_t step, double learning_rate);

  const TrainJob& job_;
  const RunText& text_;
  TrainBatches batches_;
  Validation validation_;
  std::optional<Training> training_;
  std::optional<TrainingStep> step_;
  std::optional<StepTrace> trace_;
};

}  // namespace attnres
