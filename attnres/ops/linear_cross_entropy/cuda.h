// Softmax and cross-entropy of rows of logits on the current GPU (cuda_cross_entropy.h), whose
// pointers are the device's and aligned to 16 bytes, launched on a stream (cudaStream_t). For
// gradients in float and BFloat16. Returns false, having done nothing, unless the vocabulary is a
// multiple of 8, and throws std::runtime_error where CUDA fails.
#pragma once

#include "attnres/ops/linear_cross_entropy/cuda_cross_entropy.h"

namespace attnres::gpu {

template <class Storage>
bool cross_entropy_on_gpu(const CrossEntropyRows<Storage>& op, void* stream);

}  // namespace attnres::gpu
