// The gradient of a tensor that many read, added up in one place and in float32 or better whatever
// the tensor's dtype. Autograd alone would make a tensor of every reader's part and add them in the
// tensor's own dtype.
#pragma once

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

namespace torch::autograd {
struct AutogradContext;
}

namespace attnres {

// Where it is added up.
struct GradientSlot {
  at::Tensor gradient;  // contiguous, in the compute dtype; undefined: nothing was added yet

  void add(at::Tensor part);
  // For an operation that adds by itself: makes a place for the source's gradient, without numbers
  // yet, where there is none. Whether there was one, to be added to.
  bool begin(const at::Tensor& source);
};

// The same numbers as `source`, for readers whose gradients go to one slot. When all of them have
// run backward what is in the slot leaves it for the source's own graph, rounded once. It is
// `source` itself where that has a slot already, or where no gradient is wanted.
//
// Ask for gradients of `source`, not of the result: what readers put into the slot is not among its
// own. A backward that threw leaves its part in the slot: build the graph anew. The sum is
// differentiable once; a backward that records itself (create_graph) throws Error.
at::Tensor with_slot(const at::Tensor& source);
void with_slots(std::vector<at::Tensor>& sources);

// The same numbers as `source`, for readers whose gradients go to this slot and no further; a graph
// of the source waits for them. Its own slot if it has one, so that these readers' parts are
// not added to others' before they reach it.
at::Tensor reading_into(const std::shared_ptr<GradientSlot>& slot, const at::Tensor& source);

// The slot of what one of these returned; else null.
std::shared_ptr<GradientSlot> slot_of(const at::Tensor& tensor);

// Where an operation's backward puts the gradient of a source that it read: into the source's slot,
// or into a tensor of its own.
class SourceGradient {
 public:
  SourceGradient(const at::Tensor& source, bool wanted);

  // Contiguous, in the compute dtype; undefined where no gradient is wanted. Without numbers, but
  // where there are some to be added to.
  const at::Tensor& sum() const { return sum_; }
  bool accumulate() const { return accumulate_; }
  // What the backward returns for the source: nothing for one with a slot.
  at::Tensor to_return() const;

 private:
  at::ScalarType dtype_;
  bool in_slot_ = false, accumulate_ = false;
  at::Tensor sum_;
};

// The same of several sources, which are the first inputs of a Function.
class SourceGradients {
 public:
  SourceGradients(const torch::autograd::AutogradContext& context, at::TensorList sources);

  // As backward operations take them: one that is not wanted has no numbers.
  const std::vector<at::Tensor>& sums() const { return sums_; }
  const c10::List<bool>& accumulate() const { return accumulate_; }
  // With places for `others`, which follow.
  std::vector<at::Tensor> to_return(size_t others) const;

 private:
  std::vector<SourceGradient> gradients_;
  std::vector<at::Tensor> sums_;
  c10::List<bool> accumulate_;
};

// A tensor of its own on the same data, without a history.
at::Tensor same_data(const at::Tensor& tensor);

}  // namespace attnres
