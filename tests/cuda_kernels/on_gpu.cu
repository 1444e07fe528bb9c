// The CUDA kernels on a GPU: the formulas' numbers, and the bits of the host. Built with
// ATTNRES_CUDA=ON as build/test_on_gpu, which needs no libtorch.
#include <gtest/gtest.h>

#include "attnres/ops/cuda_launch.h"
#include "tests/cuda_kernels/depth_cases.h"
#include "tests/cuda_kernels/elementary_cases.h"

namespace attnres::gpu {
namespace {

// Waits, so that results can be read.
struct GpuLauncher {
  CudaLauncher launcher{nullptr};

  int64_t shared_bytes() const { return launcher.shared_bytes(); }
  template <class Kernel>
  void launch(const typename Kernel::Operation& op) const {
    launcher.launch<Kernel>(op);
    check_cuda(cudaDeviceSynchronize(), "kernel");
  }
};

TEST(OnGpu, DepthAttentionHasTheBitsOfTheHost) {
  expect_recorded_bits(GpuLauncher{});
}

TEST(OnGpu, DepthAttentionIsThatOfTheFormulas) {
  expect_sites_of_the_formulas(GpuLauncher{});
  expect_single_passes_of_the_formula(GpuLauncher{});
}

TEST(OnGpu, RmsNormIsTheFormula) {
  expect_rms_norms(GpuLauncher{});
}

TEST(OnGpu, SwigluIsTheFormula) {
  expect_swiglus(GpuLauncher{});
}

TEST(OnGpu, RotaryIsTheFormula) {
  expect_rotaries(GpuLauncher{});
}

TEST(OnGpu, CrossEntropyIsTheFormula) {
  expect_cross_entropies(GpuLauncher{});
}

}  // namespace
}  // namespace attnres::gpu

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
