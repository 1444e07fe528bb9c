#include "attnres/ops/cuda_launch.h"
#include "attnres/ops/linear_cross_entropy/cuda.h"

namespace attnres::gpu {

template <class Storage>
bool cross_entropy_on_gpu(const CrossEntropyRows<Storage>& op, void* stream) {
  return cross_entropy(op, CudaLauncher(stream));
}

template bool cross_entropy_on_gpu(const CrossEntropyRows<float>&, void*);
template bool cross_entropy_on_gpu(const CrossEntropyRows<BFloat16>&, void*);

}  // namespace attnres::gpu
