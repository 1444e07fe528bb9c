// For observers of recomputed spans (RunObserver): a span runs once without gradients, which is
// what they see, and once more, recorded, for its backward.
#pragma once

#include <ATen/core/Tensor.h>

namespace attnres {

// A RunObserver that is this too hears of the second pass, and must outlive the backward.
class RecomputedOutputs {
 public:
  virtual ~RecomputedOutputs() = default;
  // After sublayer `site` returned y again.
  virtual void on_output_again(int site, const at::Tensor& y) = 0;
};

}  // namespace attnres
