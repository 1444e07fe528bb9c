// Steps of training by several processes: `parallel.data` replicas of the model, each a pipeline of
// `parallel.pipeline` ranks with `parallel.virtual` stages each, each of these ranks
// `parallel.tensor` processes that share its layers (parallel_ranks.h).
//
// Rank 0 leads: it has the run's folder, the validation text and a whole model besides its own
// stages, for evaluation and checkpoints, and says what is done next. The others follow. A step's
// `train.accumulate` parts are its micro-batches, shared by the replicas in order, so that it is
// the step of one process, but for rounding.
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
#include "attnres/train/checkpoint.h"
#include "attnres/train/parallel_ranks.h"
#include "attnres/train/recipe.h"
#include "attnres/train/training_step.h"

namespace attnres {

inline constexpr int kTracedSteps = 3;  // that a trace shows

// What the processes have sent each other for their steps, and kept of it.
struct ParallelTraffic {
  std::array<int64_t, kTrafficKinds> bytes_sent = {};  // of all ranks, by kind
  std::vector<int64_t> peak_received_bytes;            // by rank: Pipeline's
};

class ParallelSteps {
 public:
  // All ranks make one at the same time, with the same recipe and batches. The world must outlive
  // it, as must the communicator. Throws Error where the recipe asks for another number of
  // processes.
  ParallelSteps(const Recipe& recipe, int64_t vocab_size, TrainBatches batches,
                Communicator& world);
  ParallelSteps(const ParallelSteps&) = delete;
  ParallelSteps& operator=(const ParallelSteps&) = delete;

  // Of rank 0. Gives the others the parameters and moments that they hold of a whole model's.
  void scatter(Training& whole);
  // One step. Throws Diverged where the loss or the norm is not finite; then nothing has moved, and
  // the others have left.
  StepResult run(int64_t step, double learning_rate);
  // Brings parameters and moments home.
  void gather(Training& whole);
  // The others leave.
  ParallelTraffic end();
  // Of all ranks, before the first step: a Chrome trace of the first kTracedSteps steps goes into
  // these files when they are done, or when the others leave.
  void trace_into(std::vector<std::filesystem::path> files);

  // Of the other ranks: does what rank 0 says until it ends.
  void follow();

 private:
  struct Order;

  void tell(const Order& order);
  Order hear();
  StepResult do_step(int64_t step, double learning_rate);
  StepSums sum_over_ranks(StepSums sums) const;
  // Of rank 0's whole model, which the others don't have: to those who hold its parts, or home.
  void exchange(Training* whole, bool home);
  // The ranks that hold a parameter, or its parts, replica by replica.
  std::vector<int> holders(const Parameter& parameter) const;
  // Of the moments of the whole model's parameter of this number.
  std::vector<int> moment_holders(size_t parameter) const;
  void write_trace();
  ParallelTraffic leave();

  Recipe recipe_;
  Communicator& world_;
  ParallelRanks ranks_;
  Transformer shapes_;  // of the whole model, without numbers
  PipelinePlan plan_;
  std::vector<int> owners_;  // update_owners of the whole model, or none
  Transformer model_;        // this rank's stages, or its part of them
  Optimizer optimizer_;
  Pipeline pipeline_;
  GradientSums gradient_sums_;
  TrainBatches batches_;
  std::vector<std::filesystem::path> traces_;
  std::unique_ptr<Timeline> timeline_;  // while steps are traced
  int traced_steps_ = 0;
};

}  // namespace attnres
