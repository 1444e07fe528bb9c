// SwiGLU on the current GPU: the operations of kernel.h, whose pointers are the device's and
// aligned to 16 bytes, launched on a stream (cudaStream_t). For float and BFloat16. Both return
// false, having done nothing, unless the count of numbers is a multiple of 8, and throw
// std::runtime_error where CUDA fails.
#pragma once

#include "attnres/ops/swiglu/kernel.h"

namespace attnres::gpu {

template <class Storage>
bool swiglu_on_gpu(const kernel::SwigluForward<Storage>& op, int64_t numbers, void* stream);
template <class Storage>
bool swiglu_on_gpu(const kernel::SwigluBackward<Storage>& op, int64_t numbers, void* stream);

}  // namespace attnres::gpu
