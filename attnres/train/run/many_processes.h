// A run by several processes, which have a part of the model each (parallel_place.h). Rank 0 leads:
// it alone has the tokenizer, keeps the logs, and says what is done next; the others follow. All of
// them read and write checkpoints, in the run's folder, which all must see.
#pragma once

#include <optional>
#include <string>

#include "attnres/parallel/communicator.h"
#include "attnres/text/tokenizer.h"
#include "attnres/train/parallel/parallel_place.h"
#include "attnres/train/parallel/parallel_start.h"
#include "attnres/train/parallel/parallel_steps.h"
#include "attnres/train/parallel/pipeline_validation.h"
#include "attnres/train/run/run_processes.h"
#include "attnres/train/train_job.h"

namespace attnres {

class ManyProcesses : public RunProcesses {
 public:
  // All ranks make one at the same time. The tokenizer is rank 0's, null elsewhere. Job, tokenizer
  // and world must outlive it. Throws Error where there is not enough text.
  ManyProcesses(const TrainJob& job, SharedText text, const Tokenizer* tokenizer,
                Communicator& world);

  // For rank 0. Where one throws Diverged or CommonFailure the others have left.
  void begin(FirstWeights weights) override;
  void check_folder() override;
  TrainingState& state() override { return part_->state; }
  StepResult run(int64_t step, double learning_rate) override;
  double validation_loss() override;
  ProbeReading probe() override;
  Json sample() override;
  void save_last() override;
  void save_best() override;
  std::string end() override;

  // For the others: does what rank 0 says until it ends. Throws CommonFailure where one fails.
  void follow();

 private:
  struct Orders;

  // To all, this rank among them: gives what the order gives here.
  template <class Order>
  auto tell(const Order& order);
  void begin_here(FirstWeights weights);
  void check_folder_here();
  void save_last_here();
  void save_best_here();

  const TrainJob& job_;
  SharedText text_;
  const Tokenizer* tokenizer_;
  Communicator& world_;
  std::optional<ParallelPlace> place_;
  std::optional<Training> part_;
  std::optional<ParallelSteps> steps_;
  std::optional<PipelineValidation> validation_;
};

}  // namespace attnres
