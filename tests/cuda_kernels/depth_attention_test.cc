// Depth attention's CUDA kernels, run on the host.
#include <gtest/gtest.h>

#include "tests/cuda_kernels/depth_cases.h"
#include "tests/cuda_kernels/host_block.h"

namespace attnres::gpu::depth_attention_cuda_test {
namespace {

constexpr HostOrder kForwards, kBackwards{.backwards = true, .late_copies = true};
constexpr int64_t kShared = 227 << 10;

TEST(CudaDepthAttention, SitesAreThoseOfTheFormulas) {
  expect_sites_of_the_formulas(HostLauncher{kForwards});
}

TEST(CudaDepthAttention, ErrorsAreSeen) {
  const SiteGroup group{3, 1, 4, 5, 64};
  GroupData<float> data(group);
  const auto results = run<float>(group, HostLauncher{kForwards});
  std::swap_ranges(data.queries.begin(), data.queries.begin() + group.width,
                   data.queries.begin() + group.width);
  const GroupErrors errors = errors_of(results, expected_results(group, data));
  for (const double error :
       {errors.x, errors.outputs, errors.slots, errors.queries, errors.gains}) {
    EXPECT_GT(error, 1e-2);
  }
}

// Neither the order of threads nor when copies are made, how many blocks there are and what fits
// into shared memory change a bit.
template <class Storage>
void expect_same_bits(const SiteGroup& group, int64_t shared_memory) {
  const uint64_t hash = run<Storage>(group, HostLauncher{kForwards}).hash();
  EXPECT_EQ(run<Storage>(group, HostLauncher{kBackwards, kShared, 1}).hash(), hash);
  EXPECT_EQ(run<Storage>(group, HostLauncher{kForwards, shared_memory, 2}).hash(), hash);
  EXPECT_EQ(run<Storage>(group, HostLauncher{kBackwards, shared_memory, 2}).hash(), hash);
}

TEST(CudaDepthAttention, BitsAreTheSameHoweverItIsRun) {
  expect_same_bits<float>({9, 3, 3, 3, 136}, 20 << 10);     // one source a step, nothing ahead
  expect_same_bits<BFloat16>({9, 3, 3, 3, 136}, 20 << 10);  // some sources a step
}

TEST(CudaDepthAttention, RefusesWhatItHasNoKernelFor) {
  const HostLauncher launcher{kForwards};
  for (const SiteGroup& group : {SiteGroup{2, 0, 1, 1, 12}, SiteGroup{2, 0, 1, 1, 8200}}) {
    const GroupData<float> data(group);
    EXPECT_FALSE((GroupRun<float, HostLauncher>(group, data, launcher).run()));
  }
  const SiteGroup small{2, 0, 1, 1, 64};
  const GroupData<float> data(small);
  EXPECT_FALSE((GroupRun<float, HostLauncher>(small, data, HostLauncher{kForwards, 512}).run()));
}

TEST(CudaDepthAttention, TheSinglePassIsTheFormula) {
  expect_single_passes_of_the_formula(HostLauncher{kForwards});
}

TEST(CudaDepthAttention, BitsAreThoseThatWereRecorded) {
  expect_recorded_bits(HostLauncher{kForwards});
}

}  // namespace
}  // namespace attnres::gpu::depth_attention_cuda_test
