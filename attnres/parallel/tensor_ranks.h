// The processes of a tensor group, over a communicator. Each sends every other what that one needs:
// of a gathered or summed tensor of B bytes each of n processes sends (n - 1) / n B.
#pragma once

#include "attnres/parallel/communicator.h"
#include "attnres/parameters/parameters.h"
#include "attnres/parameters/tensor_group.h"

namespace attnres {

class TensorRanks : public TensorGroup {
 public:
  // The group of all ranks of the communicator, which must outlive it.
  explicit TensorRanks(Communicator& ranks)
      : TensorGroup({ranks.rank(), ranks.size()}), ranks_(ranks) {}

  at::Tensor all_gather(const at::Tensor& part, int64_t rows) const override;
  at::Tensor reduce_scatter(const at::Tensor& summand) const override;

 private:
  at::Tensor own(const at::Tensor& whole) const { return part_of_rows(part(), whole); }
  at::Tensor of(int rank, const at::Tensor& whole) const {
    return part_of_rows({rank, part().size}, whole);
  }

  Communicator& ranks_;
};

}  // namespace attnres
