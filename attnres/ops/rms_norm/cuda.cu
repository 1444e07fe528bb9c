#include "attnres/ops/cuda_launch.h"
#include "attnres/ops/rms_norm/cuda.h"
#include "attnres/ops/rms_norm/cuda_rms_norm.h"

namespace attnres::gpu {

template <class Storage>
bool rms_norm_on_gpu(const kernel::RmsNormForward<Storage>& op, int64_t tokens, void* stream) {
  return rms_norm_forward(op, tokens, CudaLauncher(stream));
}

template <class Storage>
bool rms_norm_backward_on_gpu(const kernel::RmsNormBackward<Storage>& op, int64_t tokens,
                              float* memory, float* grad_gain_D, void* stream) {
  return rms_norm_backward(op, tokens, memory, grad_gain_D, CudaLauncher(stream));
}

template bool rms_norm_on_gpu(const kernel::RmsNormForward<float>&, int64_t, void*);
template bool rms_norm_on_gpu(const kernel::RmsNormForward<BFloat16>&, int64_t, void*);
template bool rms_norm_backward_on_gpu(const kernel::RmsNormBackward<float>&, int64_t, float*,
                                       float*, void*);
template bool rms_norm_backward_on_gpu(const kernel::RmsNormBackward<BFloat16>&, int64_t, float*,
                                       float*, void*);

}  // namespace attnres::gpu
