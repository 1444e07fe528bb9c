#include "attnres/ops/gradient_slot.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "attnres/support/error.h"

namespace attnres::gradient_slot_test {
namespace {

at::Tensor leaf(at::ScalarType dtype = at::kFloat) {
  return at::ones({3}, dtype).set_requires_grad(true);
}

double first_gradient(const at::Tensor& leaf) {
  return leaf.grad()[0].item<double>();
}

TEST(GradientSlot, HandsOnTheSumOfItsReaders) {
  const at::Tensor x = leaf();
  const at::Tensor source = with_slot(x * 2);
  const auto slot = slot_of(source);
  const at::Tensor one = reading_into(slot, source), other = reading_into(slot, source);
  (source * 3 + one * 5 + one * 7 + other * 11).sum().backward();
  EXPECT_EQ(first_gradient(x), 2 * (3 + 5 + 7 + 11));
  EXPECT_FALSE(slot->gradient.defined());
}

TEST(GradientSlot, KeepsTheSumWhereTheSourceHasNoGraph) {
  const auto slot = std::make_shared<GradientSlot>();
  const at::Tensor source = at::ones({3});
  for (int run = 1; run <= 2; ++run) {
    (reading_into(slot, source) * 3 + reading_into(slot, source) * 5).sum().backward();
    EXPECT_TRUE(slot->gradient.eq(8 * run).all().item<bool>());
  }
}

// 256 and 300 halves: bfloat16 has steps of 2 from 256 on.
TEST(GradientSlot, AddsInFloat32) {
  const auto gradient_with = [](bool slots) {
    const at::Tensor x = leaf(at::kBFloat16);
    const at::Tensor source = slots ? with_slot(x) : x;
    const auto slot = slot_of(source);
    const auto reader = [&] { return slots ? reading_into(slot, source) : source; };
    std::vector<at::Tensor> reads = {(reader() * 256).sum()};
    for (int i = 0; i < 300; ++i) reads.push_back((reader() * 0.5).sum());
    at::stack(reads).sum().backward();
    EXPECT_EQ(x.grad().scalar_type(), at::kBFloat16);
    return first_gradient(x);
  };
  EXPECT_EQ(gradient_with(true), 406);
  EXPECT_NE(gradient_with(false), 406);
}

TEST(GradientSlot, IsThereWhereAGradientIsWanted) {
  EXPECT_EQ(slot_of(with_slot(at::ones({3}))), nullptr);
  EXPECT_EQ(slot_of({}), nullptr);
  const at::Tensor source = with_slot(leaf() * 2);
  EXPECT_TRUE(with_slot(source).is_same(source));
  const at::NoGradGuard not_recording;
  EXPECT_EQ(slot_of(with_slot(leaf())), nullptr);
}

// What a reader gives may be somebody else's too.
TEST(GradientSlot, LeavesTheTensorsAloneThatItIsGiven) {
  GradientSlot slot;
  const at::Tensor part = at::ones({3});
  slot.add(part);
  slot.add(part.view({3}));
  slot.add(at::ones({1}).expand({3}));
  EXPECT_TRUE(part.eq(1).all().item<bool>());
  EXPECT_TRUE(slot.gradient.eq(3).all().item<bool>());
}

// Without the slot torch refuses, since the product keeps its factors.
TEST(GradientSlot, SeesThatItsSourceWasChangedInPlace) {
  const at::Tensor w = leaf(), y = leaf() * 2;
  const at::Tensor read = (with_slot(y) * w).sum();
  y.detach().mul_(2);
  EXPECT_THROW(read.backward(), c10::Error);
}

TEST(GradientSlot, RefusesSecondDerivatives) {
  const at::Tensor x = leaf();
  const at::Tensor source = with_slot(x * 1);
  const at::Tensor read = reading_into(slot_of(source), source).pow(3).sum();
  EXPECT_THROW(torch::autograd::grad({read}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true),
               Error);
  const at::Tensor gradient = torch::autograd::grad({read}, {x})[0];
  EXPECT_EQ(gradient[0].item<double>(), 3);
}

}  // namespace
}  // namespace attnres::gradient_slot_test
