#include "tests/device/pretend_device.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "attnres/ops/composed.h"
#include "attnres/ops/depth_scores/depth_scores.h"
#include "attnres/ops/situ/situ.h"
#include "attnres/ops/swiglu/swiglu.h"
#include "tests/tolerances.h"

namespace attnres::testing::pretend_device_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Throws;
using ::testing::ThrowsMessage;

at::Tensor some_numbers(at::IntArrayRef sizes) {
  int64_t count = 1;
  for (const int64_t size : sizes) count *= size;
  return at::linspace(-2, 3, count, at::kDouble).sin().view(sizes);
}

// Views, products, in-place changes, a norm and a softmax, with gradients.
TEST(PretendDevice, ComputesWhatTheCpuDoes) {
  const auto gradients = [](at::Device device) {
    const at::Tensor table = some_numbers({10, 6}).to(device).set_requires_grad(true);
    const at::Tensor map = some_numbers({6, 6}).to(device).set_requires_grad(true);
    const at::Tensor x = at::embedding(table, at::tensor({1, 3, 3, 7}).to(device));
    const at::Tensor y = at::mm(at::silu(x), map.t()).view({2, 2, 6}).transpose(0, 1);
    at::Tensor z = at::rms_norm(y, {6}, std::nullopt, 1e-6) * 2;
    z.narrow(1, 0, 1).add_(1);
    (z * y).softmax(-1).square().sum().backward();
    return std::pair(table.grad().cpu(), map.grad().cpu());
  };
  const auto expected = gradients(at::kCPU), got = gradients(pretend_device());
  EXPECT_TRUE(close(got.first, expected.first));
  EXPECT_TRUE(close(got.second, expected.second));
}

TEST(PretendDevice, IsNotTheCpu) {
  const at::Tensor here = some_numbers({3, 4}), there = here.to(pretend_device());
  EXPECT_EQ(there.device().str(), "pretend:0");
  EXPECT_THAT([&] { return here + there; }, Throws<c10::Error>());
  EXPECT_THAT([&] { return at::mm(there, here.t()); },
              ThrowsMessage<c10::Error>(HasSubstr("on one device")));
  EXPECT_THAT(
      [&] {
        return there.index_select(0, at::tensor({1, 2}));
      },
      ThrowsMessage<c10::Error>(HasSubstr("on one device")));
  EXPECT_THAT(
      [&] {
        return at::cat({there, here});
      },
      ThrowsMessage<c10::Error>(HasSubstr("on one device")));
}

TEST(PretendDevice, HasNoMemoryForTheHost) {
  const at::Tensor there = some_numbers({3}).to(pretend_device());
  const auto* numbers = there.const_data_ptr<double>();
  EXPECT_DEATH(
      {
        if (*numbers > 0) std::abort();
      },
      "");
}

TEST(PretendDevice, CountsWhatTheHostWaitsFor) {
  const at::Tensor there = some_numbers({3, 4}).to(pretend_device());
  const HostReads reads;
  const at::Tensor sum = (there * 2).sum();
  there.add_(at::ones({3, 4}, at::kDouble).to(pretend_device()));
  EXPECT_EQ(reads.count(), 0);
  sum.item<double>();
  there.select(0, 1).to(at::kCPU);
  there.nonzero();
  there.index({there.gt(0)});
  EXPECT_THAT(reads.list(),
              ElementsAre("item", "copy of 4 numbers", "aten::nonzero", "aten::nonzero"));
}

// Which a device has that brings its own.
TEST(PretendDevice, HasNoKernelsOfOurs) {
  const auto operation =
      c10::Dispatcher::singleton().findSchemaOrThrow("attnres::rotary_fused", "");
  ASSERT_TRUE(operation.hasKernelForDispatchKey(c10::DispatchKey::CPU));
  const auto turn = [&](at::Device device) {
    torch::jit::Stack stack;
    for (const std::vector<int64_t>& sizes :
         {std::vector<int64_t>{1, 3, 2, 4}, {3, 1, 2}, {3, 1, 2}}) {
      stack.emplace_back(some_numbers(sizes).to(device));
    }
    operation.callBoxed(stack);
  };
  turn(at::kCPU);
  EXPECT_THAT([&] { turn(pretend_device()); },
              ThrowsMessage<c10::Error>(HasSubstr("has no kernel for the pretend device")));
}

// Each once, of what was computed, and nothing of the CPU.
TEST(PretendDevice, NamesWhatIsComposed) {
  std::vector<std::string> names;
  observe_composed([&](const std::string& operation, c10::Device device) {
    EXPECT_EQ(device, pretend_device());
    names.push_back(operation);
  });
  const at::Tensor rows = some_numbers({3, 8}), weights = some_numbers({2});
  weighted_sum({rows, rows}, weights);
  EXPECT_THAT(names, IsEmpty());
  const at::Tensor there = rows.to(pretend_device());
  const at::Tensor sum = weighted_sum({there, there}, weights.to(pretend_device()));
  weighted_sum({sum, sum}, weights.to(pretend_device()));
  situ(sum, there, 1, 1);
  observe_composed(nullptr);
  swiglu(sum, there);
  EXPECT_THAT(names, ElementsAre("weighted sum", "situ"));
}

}  // namespace
}  // namespace attnres::testing::pretend_device_test
