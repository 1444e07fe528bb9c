// Depth weights of the tokens of one step.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "attnres/infer/generation_settings.h"
#include "attnres/model/transformer.h"

namespace attnres {

class StepDepthWeights : public RunObserver {
 public:
  void on_read(int site, const ReadTrace& trace) override;

  // Appends those of the rows row .. row + tokens - 1, which are the sequence's tokens from `first`
  // on.
  void add_to(TokensDepthWeights* weights, int64_t first, int64_t row, int64_t tokens) const;

 private:
  std::vector<at::Tensor> weights_TN_;  // by site that has some, float32
};

}  // namespace attnres
