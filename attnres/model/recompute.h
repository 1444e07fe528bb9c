// Activation recomputation (Chen et al., arXiv 1604.06174): of each span between two of the mixer's
// cuts only what crosses its ends is kept, and the backward runs the span again (StageRun).
#pragma once

#include "attnres/model/transformer.h"

namespace attnres {

// A RunObserver that is this too hears of the second pass, and must outlive the backward.
class RecomputedOutputs {
 public:
  virtual ~RecomputedOutputs() = default;
  // After sublayer `site` returned y again.
  virtual void on_output_again(int site, const at::Tensor& y) = 0;
};

// As Transformer::run, whose model must outlive the backward. The observer sees the first pass
// only, without gradients, and experts' loads count it only. The second pass's backward is
// re-entrant: C++ has no saved-tensor hooks. Gradients of sealed tensors gather in slots, one for
// each, and not in a tensor of every span.
void run_recomputed(const Transformer& model, DepthState& state, int last,
                    const RunContext& context);

}  // namespace attnres
