// For the fallbacks of operations, which are composed of tensor operations: on any device, and as
// often differentiable as one likes.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

namespace attnres {

// Told once of every operation, such as "paged attention", that is composed for want of a kernel
// for a device that is not the CPU. Backwards go with their operations.
using ComposedObserver = std::function<void(const std::string& operation, c10::Device device)>;

// In the place of the one before, which may have been told already; not while others compute.
void observe_composed(ComposedObserver observer);

// At the beginning of a fallback, with a tensor that it computes on. `operation` is a literal.
void note_composed(const char* operation, const at::Tensor& tensor);

// Sources [..., D] as values [N, ..., D] in the compute type: on a GPU one launch serves them all.
at::Tensor stack_values(at::TensorList sources);
// 1 / sqrt(mean(v^2) + eps) [...] of values [..., D].
at::Tensor inverse_rms_of(const at::Tensor& values, double eps);

}  // namespace attnres
