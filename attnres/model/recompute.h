// Activation recomputation (Chen et al., arXiv 1604.06174): the intermediates of a piece of the
// forward are dropped, and computed again when the backward needs them.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace attnres {

// Computes a piece's outputs from its inputs, the same each time it is called.
using Replay = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>;

// Makes `outputs`, which were computed from `inputs` without recording gradients, differentiable:
// the backward calls `replay` on the inputs, recording, and differentiates that (a re-entrant
// backward). Gradients reach the inputs and every parameter that the replay uses; the outputs
// themselves are not kept. No output may be an input. At least one input has to require a gradient.
void differentiate_by_replay(std::vector<at::Tensor>& outputs,
                             const std::vector<at::Tensor>& inputs, Replay replay);

}  // namespace attnres
