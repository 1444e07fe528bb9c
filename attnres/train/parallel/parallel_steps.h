// Steps of training by several processes (parallel_place.h), each of which has its part of the
// model and of its moments. A step's `train.accumulate` parts are its micro-batches, shared by the
// replicas in order, so that it is the step of one process, but for rounding.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "attnres/data/train_batches.h"
#include "attnres/parallel/communicator.h"
#include "attnres/parallel/gradient_sums.h"
#include "attnres/parallel/pipeline.h"
#include "attnres/train/parallel/parallel_place.h"
#include "attnres/train/run_folder/checkpoint.h"
#include "attnres/train/step/training_step.h"

namespace attnres {

inline constexpr int kTracedSteps = 3;  // that a trace shows

// What the processes have sent each other for their steps, and kept of it.
struct ParallelTraffic {
  std::array<int64_t, kTrafficKinds> bytes_sent = {};  // of all ranks, by kind
  std::vector<int64_t> peak_received_bytes;            // by rank: Pipeline's
};

// All ranks make one, and call its functions, at the same time.
class ParallelSteps {
 public:
  // `part` is the training of the place's part. Place and part must outlive it.
  ParallelSteps(const ParallelPlace& place, Training& part, TrainBatches batches);
  ParallelSteps(const ParallelSteps&) = delete;
  ParallelSteps& operator=(const ParallelSteps&) = delete;

  // One step. Throws Diverged on all ranks where the loss or the norm is not finite; then nothing
  // has moved.
  StepResult run(int64_t step, double learning_rate);
  // There is no further step.
  ParallelTraffic end();
  // Before the first step: a Chrome trace of the first kTracedSteps steps goes into these files
  // when they are done, or at the end.
  void trace_into(std::vector<std::filesystem::path> files);

 private:
  BrokenRows find_broken_rows(int64_t step);
  StepSums sum_over_ranks(StepSums sums) const;
  void write_trace();

  const ParallelPlace& place_;
  Communicator& world_;
  const Transformer& model_;
  Optimizer& optimizer_;
  Pipeline pipeline_;
  GradientSums gradient_sums_;
  TrainBatches batches_;
  std::vector<std::filesystem::path> traces_;
  std::unique_ptr<Timeline> timeline_;  // while steps are traced
  int traced_steps_ = 0;
};

}  // namespace attnres
