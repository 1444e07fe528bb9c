// RMSNorm on the current GPU: the operations of kernel.h, whose pointers are the device's and
// aligned to 16 bytes, launched on a stream (cudaStream_t). For float and BFloat16. Both return
// false, having done nothing, where there is no kernel for the width: it must be a multiple of 8 up
// to 8192. They throw std::runtime_error where CUDA fails.
#pragma once

#include "attnres/ops/rms_norm/kernel.h"

namespace attnres::gpu {

template <class Storage>
bool rms_norm_on_gpu(const kernel::RmsNormForward<Storage>& op, int64_t tokens, void* stream);

// Writes the gain's gradient. Memory: runs_of_tokens(tokens) (cuda_code.h) times D floats.
template <class Storage>
bool rms_norm_backward_on_gpu(const kernel::RmsNormBackward<Storage>& op, int64_t tokens,
                              float* memory, float* grad_gain_D, void* stream);

}  // namespace attnres::gpu
