// Depth weights of the tokens of one step.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "attnres/infer/generation_settings.h"
#include "attnres/model/transformer.h"
#include "attnres/parameters/tensor_group.h"

namespace attnres {

class StepDepthWeights : public RunObserver {
 public:
  // Observes a step of `tokens` tokens. In a tensor group, where each process sees its own tokens',
  // all have one in the same call, and get those of all.
  StepDepthWeights(const TensorGroup* group, int64_t tokens) : group_(group), tokens_(tokens) {}

  void on_read(int site, const ReadTrace& trace) override;

  // Appends those of the rows row .. row + tokens - 1, which are the sequence's tokens from `first`
  // on.
  void add_to(TokensDepthWeights* weights, int64_t first, int64_t row, int64_t tokens) const;

 private:
  const TensorGroup* group_;
  int64_t tokens_;
  std::vector<at::Tensor> weights_TN_;  // by site that has some, float32
};

}  // namespace attnres
