#include "attnres/ops/cuda_launch.h"
#include "attnres/ops/depth_attention/cuda.h"
#include "attnres/ops/depth_attention/cuda_schedule.h"

namespace attnres::gpu {

template <class Storage>
bool depth_attention_on_gpu(const kernel::DepthAttentionForward<Storage>& op, void* stream) {
  const CudaLauncher launcher(stream);
  return op.complete ? depth_attention_forward(op, launcher) : phase_one_forward(op, launcher);
}

template <class Storage>
bool phase_two_on_gpu(const kernel::PhaseTwoForward<Storage>& op, void* stream) {
  return phase_two_forward(op, CudaLauncher(stream));
}

template <class Storage>
bool depth_attention_backward_on_gpu(const kernel::DepthAttentionBackward<Storage>& op,
                                     bool complete, float* memory, float* grad_queries_SD,
                                     void* stream) {
  const CudaLauncher launcher(stream);
  return complete ? depth_attention_backward(op, memory, grad_queries_SD, launcher)
                  : phase_one_backward(op, memory, grad_queries_SD, launcher);
}

template <class Storage>
bool phase_two_backward_on_gpu(const kernel::PhaseTwoBackward<Storage>& op, float* memory,
                               float* sums, void* stream) {
  return phase_two_backward(op, memory, sums, CudaLauncher(stream));
}

template bool depth_attention_on_gpu(const kernel::DepthAttentionForward<float>&, void*);
template bool depth_attention_on_gpu(const kernel::DepthAttentionForward<BFloat16>&, void*);
template bool phase_two_on_gpu(const kernel::PhaseTwoForward<float>&, void*);
template bool phase_two_on_gpu(const kernel::PhaseTwoForward<BFloat16>&, void*);
template bool depth_attention_backward_on_gpu(const kernel::DepthAttentionBackward<float>&, bool,
                                              float*, float*, void*);
template bool depth_attention_backward_on_gpu(const kernel::DepthAttentionBackward<BFloat16>&, bool,
                                              float*, float*, void*);
template bool phase_two_backward_on_gpu(const kernel::PhaseTwoBackward<float>&, float*, float*,
                                        void*);
template bool phase_two_backward_on_gpu(const kernel::PhaseTwoBackward<BFloat16>&, float*, float*,
                                        void*);

}  // namespace attnres::gpu
