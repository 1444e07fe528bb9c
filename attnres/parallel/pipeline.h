// A model computed by several processes, each with some of its stages: forward and backward of a
// step's micro-batches in the order of a schedule (schedule.h), between whose stages there crosses
// what a policy says (transfers.h). Losses and gradients are those of one process.
//
// A rank keeps a copy of each sealed tensor that it has received or sealed, for its later stages,
// until the backward of the stage that it came with has passed. That backward sends the sum of all
// that the rank, and those that it sent the tensor on to, have added to its gradient: each part of
// it goes each way once. Receives are posted ahead of need, and nobody waits for what it sends.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "attnres/model/batch.h"
#include "attnres/model/stage_run.h"
#include "attnres/model/transformer.h"
#include "attnres/parallel/communicator.h"
#include "attnres/parallel/gradient_sums.h"
#include "attnres/parallel/schedule.h"
#include "attnres/parallel/timeline.h"
#include "attnres/parallel/transfers.h"

namespace attnres {

// Summed over micro-batches.
struct LossNumbers {
  double loss = 0;  // nats
  int64_t targets = 0;
};

// Who computes what.
struct PipelinePlan {
  PipelineSize size = {};
  std::vector<StageTransfers> stages = {};  // C

  SiteSet sites_of(int rank) const;
  std::vector<SiteSet> sites_by_rank() const;
};

// Plans for a model's mixer; even_stages where no stages are given. Throws UsageError where one
// rank is to have several stages, or there are fewer sublayers than stages.
PipelinePlan plan_pipeline(const DepthMixer& mixer, int sublayers, const PipelineSize& size,
                           TransferPolicy policy, std::vector<SiteRange> stages = {});

class Pipeline {
 public:
  // `model` has the sites of the communicator's rank. All of them must outlive the pipeline.
  Pipeline(const Transformer& model, const PipelinePlan& plan, Communicator& communicator);

  // Adds the gradients of the sum of losses to the parameters; those of a parameter that several
  // ranks hold are still parts of a sum (gradient_sums.h). All ranks call it, at the same time.
  // Returns losses and targets on the rank of the last stage, zeros on all others. An observer sees
  // the sites of this rank, micro-batch after micro-batch. Tells `sums` of the last backward of
  // each stage, if there are any.
  LossNumbers forward_backward(const std::vector<Batch>& batches, const RunContext& context,
                               GradientSums* sums = nullptr);
  // Without gradients.
  LossNumbers forward(const std::vector<Batch>& batches);
  // What the head reads of a batch's inputs, [B T, D], on the rank of the last stage; undefined on
  // all others.
  at::Tensor output(const at::Tensor& inputs_BT);

  // Writes what it does from now on into a timeline, or into none.
  void show_in(Timeline* timeline) { timeline_ = timeline; }

  // The most bytes of received copies of sealed tensors that this rank has had at once, of all
  // micro-batches.
  int64_t peak_received_bytes() const { return peak_received_bytes_; }

 private:
  class Pass;

  PipelineSchedule forwards(int micro_batches) const;

  const Transformer& model_;
  const PipelinePlan& plan_;
  Communicator& communicator_;
  Timeline* timeline_ = nullptr;
  int64_t peak_received_bytes_ = 0;
};

}  // namespace attnres
