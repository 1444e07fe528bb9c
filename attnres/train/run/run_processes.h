// Who trains a run's model, as its trainer sees it: this process alone (one_process.h), or several
// of which this one leads (many_processes.h).
#pragma once

#include <cstdint>
#include <string>

#include "attnres/support/json.h"
#include "attnres/train/run_folder/checkpoint.h"
#include "attnres/train/step/probe.h"
#include "attnres/train/step/training_step.h"

namespace attnres {

// What a run's weights are at first.
enum class FirstWeights {
  drawn,          // from train.seed
  of_model,       // those of job.from
  of_checkpoint,  // with moments and state: those of checkpoints/last
};

class RunProcesses {
 public:
  virtual ~RunProcesses() = default;

  // Makes the model, once and before all else. Throws Error as load_model and load_checkpoint.
  virtual void begin(FirstWeights weights) = 0;
  // Throws Error unless all of them see the run's folder, which is there now.
  virtual void check_folder() = 0;
  // The run's state: what is saved with the next checkpoint.
  virtual TrainingState& state() = 0;

  virtual StepResult run(int64_t step, double learning_rate) = 0;
  // Looks at the validation text: see Validation.
  virtual double validation_loss() = 0;
  virtual ProbeReading probe() = 0;
  virtual Json sample() = 0;
  // Replaces checkpoints/last. Throws Diverged where the weights are not finite; the next step's
  // loss would say so too, but then a good checkpoint had been replaced.
  virtual void save_last() = 0;
  virtual void save_best() = 0;  // replaces checkpoints/best
  // There is nothing further to do. What the steps have taken, in a line, or nothing.
  virtual std::string end() = 0;
};

}  // namespace attnres
