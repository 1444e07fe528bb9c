// Depth attention on the current GPU: the operations of kernel.h and kernel_phase_two.h, whose
// arrays of pointers are on the host and what they point to on the device, launched on a stream
// (cudaStream_t). Rows are aligned to 16 bytes. For float and BFloat16.
//
// They return false, having done nothing, where there is no kernel: widths that are no multiple of
// 8 or above 8192, more than 256 sources, rows that don't fit into the GPU's shared memory. They
// throw std::runtime_error where CUDA fails.
//
// Results have the same bits on every GPU. Backwards sum over runs of tokens, and need `memory` for
// runs_of_tokens(T) (cuda_code.h) times as many floats as they sum up.
#pragma once

#include "attnres/ops/depth_attention/kernel.h"
#include "attnres/ops/depth_attention/kernel_phase_two.h"

namespace attnres::gpu {

// Incomplete: phase 1. Complete, of one site: all of depth attention.
template <class Storage>
bool depth_attention_on_gpu(const kernel::DepthAttentionForward<Storage>& op, void* stream);
template <class Storage>
bool phase_two_on_gpu(const kernel::PhaseTwoForward<Storage>& op, void* stream);

// Writes the queries' gradients, [S, D]. Without phase 2's half of the softmax where `complete`.
template <class Storage>
bool depth_attention_backward_on_gpu(const kernel::DepthAttentionBackward<Storage>& op,
                                     bool complete, float* memory, float* grad_queries_SD,
                                     void* stream);

// Writes the gradients of the query and, where there is a norm, of its gain: [1 or 2, D].
template <class Storage>
bool phase_two_backward_on_gpu(const kernel::PhaseTwoBackward<Storage>& op, float* memory,
                               float* sums, void* stream);

}  // namespace attnres::gpu
