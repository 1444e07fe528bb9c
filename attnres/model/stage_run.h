// One pass of some sites over a batch, forward and then backward, between tensors that a process
// may receive and send: a pipeline's stage, or a span that is computed again for its backward.
//
//   run = StageRun(stage, before, stage.sites());  run.after()               // forward
//   gradients of `before` = run.backward(gradients of run.after())           // backward
//
// Gradients of sealed tensors go back from stage to stage as sums: each stage adds the parts of its
// own readers to what later stages gave, once, in float32 or better whatever the storage, and the
// stage that sealed a tensor hands the whole sum to the sublayers it came from.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "attnres/model/batch.h"
#include "attnres/model/transformer.h"
#include "attnres/ops/gradient_slot.h"

namespace attnres {

// A settled state before a site, in the order of its plan: tensors without a history, or their
// gradients. One that no site reads any more may be undefined, and so may a gradient that is zero.
struct CutState {
  std::vector<at::Tensor> sealed = {}, open = {};
};

class StageRun {
 public:
  // Runs the sites of `sites`, all of them `model`'s, on what crossed before the first, of the
  // tokens of these spans, or, from site 0 on, on a batch's inputs. Without gradients if none are
  // recorded at this time. The model must outlive the run. Throws Error as Transformer::run does.
  StageRun(const Transformer& model, const CutState& before, std::shared_ptr<const Spans> spans,
           SiteRange sites, const RunContext& context = {});
  StageRun(const Transformer& model, const Batch& batch, SiteRange sites,
           const RunContext& context = {});

  // What crosses after the last site; after the output site, one open tensor: what the head reads.
  const CutState& after() const { return after_; }

  // Adds the gradients of the parameters to theirs, and returns those of `before`: of sealed
  // tensors with what `gradients`, of after(), has for the same ones. These it takes, and adds to
  // them in place. Once. Throws Error where the numbers of tensors differ, or nothing was recorded.
  CutState backward(CutState gradients);

 private:
  void run(DepthState state, SiteRange sites, const RunContext& context);
  void give_slots(DepthState& state);

  const Transformer& model_;
  bool recorded_;
  CutState after_;
  // The sealed tensors, those of `before` first, as the run's graph has them, and their slots.
  std::vector<at::Tensor> sealed_;
  std::vector<std::shared_ptr<GradientSlot>> slots_;
  std::vector<at::Tensor> open_before_, open_after_;  // of the graph
  size_t sealed_before_ = 0;
};

}  // namespace attnres
