// Processes that compute every layer of a model together (tensor parallelism): each holds a part of
// the heads, the channels or the hidden width, and between layers the rows of some of the tokens.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace attnres {

// One of `size` parts of something.
struct TensorPart {
  int rank = 0, size = 1;

  bool is_whole() const { return size == 1; }
};

// Rows from `first` on.
struct RowRange {
  int64_t first = 0, count = 0;
};
// Those of `rows` that are a part's: parts lie in the order of ranks, and the first ones have one
// row more where they do not divide evenly.
RowRange rows_of_part(const TensorPart& part, int64_t rows);
// The same of a tensor [rows, ..]: a view.
at::Tensor part_of_rows(const TensorPart& part, const at::Tensor& whole);

// How the processes of a group bring together what they hold in parts, without gradients. All of
// them call these in the same order; they throw Error where another one has failed.
class TensorGroup {
 public:
  explicit TensorGroup(const TensorPart& part) : part_(part) {}
  virtual ~TensorGroup() = default;
  TensorGroup(const TensorGroup&) = delete;
  TensorGroup& operator=(const TensorGroup&) = delete;

  const TensorPart& part() const { return part_; }

  // The whole [rows, ..] of all parts [own rows, ..], the same bits on every rank.
  virtual at::Tensor all_gather(const at::Tensor& part, int64_t rows) const = 0;
  // This rank's rows of the sum of all ranks' tensors [rows, ..]: added in the order of ranks, in
  // float32 or better, and rounded once.
  virtual at::Tensor reduce_scatter(const at::Tensor& whole) const = 0;

 private:
  TensorPart part_;
};

}  // namespace attnres
