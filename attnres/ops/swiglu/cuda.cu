#include "attnres/ops/cuda_launch.h"
#include "attnres/ops/swiglu/cuda.h"
#include "attnres/ops/swiglu/cuda_swiglu.h"

namespace attnres::gpu {

template <class Storage>
bool swiglu_on_gpu(const kernel::SwigluForward<Storage>& op, int64_t numbers, void* stream) {
  return swiglu(op, numbers, CudaLauncher(stream));
}
template <class Storage>
bool swiglu_on_gpu(const kernel::SwigluBackward<Storage>& op, int64_t numbers, void* stream) {
  return swiglu(op, numbers, CudaLauncher(stream));
}

template bool swiglu_on_gpu(const kernel::SwigluForward<float>&, int64_t, void*);
template bool swiglu_on_gpu(const kernel::SwigluForward<BFloat16>&, int64_t, void*);
template bool swiglu_on_gpu(const kernel::SwigluBackward<float>&, int64_t, void*);
template bool swiglu_on_gpu(const kernel::SwigluBackward<BFloat16>&, int64_t, void*);

}  // namespace attnres::gpu
