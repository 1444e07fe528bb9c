// A sublayer that several processes compute together, each with a part of its heads, channels or
// hidden width (Megatron-LM, arXiv 1909.08053), between tokens that each holds some of (sequence
// parallelism, arXiv 2205.05198; arXiv 2603.15031, section 4.2). Process r of n, with t of the T
// tokens:
//
//   x = all_gather(x_r)                     [t, D] to [T, D]
//   y_r = reduce_scatter(f_r(x))            the own tokens of f_1(x) + .. + f_n(x), [t, D]
//
// Backward each of the two is the other: gradients of y are gathered, those of x are summed.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "attnres/layers/sublayer.h"
#include "attnres/parameters/tensor_group.h"

namespace attnres {

// All tokens' rows [T, ..] of each process's own [t, ..]. Backward the gradients that the processes
// have for a row are added up.
at::Tensor gather_tokens(const TensorGroup& group, const at::Tensor& own, int64_t tokens);
// The own rows [t, ..] of the sum of all processes' [T, ..].
at::Tensor sum_own_tokens(const TensorGroup& group, const at::Tensor& part);
// The same along the heads of [T, H, ..]: [T, H / n, ..] of each.
at::Tensor sum_own_heads(const TensorGroup& group, const at::Tensor& part_THK);

class TensorParallel : public Sublayer {
 public:
  // `part` is this process's of the sublayer. The group must outlive it.
  TensorParallel(std::unique_ptr<Sublayer> part, const TensorGroup& group);

  // Takes and gives own tokens; the context is of all.
  SublayerOutput forward(const SublayerInput& own, const SequenceContext& context) const override;
  SublayerCost cost(int64_t context) const override { return part_->cost(context); }
  std::vector<KeptTensor> kept() const override { return part_->kept(); }

 private:
  std::unique_ptr<Sublayer> part_;
  const TensorGroup& group_;
};

}  // namespace attnres
