#include "attnres/ops/cuda_launch.h"
#include "attnres/ops/rotary/cuda.h"
#include "attnres/ops/rotary/cuda_rotary.h"

namespace attnres::gpu {

template <class Storage>
bool rotary_on_gpu(const kernel::Rotary<Storage>& op, int64_t rows, void* stream) {
  return rotary(op, rows, CudaLauncher(stream));
}

template bool rotary_on_gpu(const kernel::Rotary<float>&, int64_t, void*);
template bool rotary_on_gpu(const kernel::Rotary<BFloat16>&, int64_t, void*);

}  // namespace attnres::gpu
