// Rotary position embedding on the current GPU: the operation of kernel.h, whose pointers are the
// device's and aligned to 16 bytes, launched on a stream (cudaStream_t). For float and BFloat16.
// Returns false, having done nothing, unless half a head is a multiple of 8, and throws
// std::runtime_error where CUDA fails.
#pragma once

#include "attnres/ops/rotary/kernel.h"

namespace attnres::gpu {

template <class Storage>
bool rotary_on_gpu(const kernel::Rotary<Storage>& op, int64_t rows, void* stream);

}  // namespace attnres::gpu
