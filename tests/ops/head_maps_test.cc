#include "attnres/ops/head_maps/head_maps.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <array>
#include <vector>

#include "attnres/support/error.h"
#include "tests/ops/every_target.h"

namespace attnres::testing::head_maps_test {
namespace {

using at::Tensor;

Tensor drawn(at::IntArrayRef sizes, uint64_t seed) {
  return at::randn(sizes, at::detail::createCPUGenerator(seed), at::kFloat);
}

// In double.
Tensor expected(const Tensor& x_THK, const Tensor& w_HNK, bool transposed) {
  return at::einsum(transposed ? "thn,hnk->thk" : "thk,hnk->thn",
                    {x_THK.to(at::kDouble), w_HNK.to(at::kDouble)});
}

double largest(const Tensor& difference) {
  return difference.abs().max().item<double>();
}

TEST(HeadMaps, AreThoseOfEachHead) {
  on_every_target([] {
    for (const auto& [T, H, N, K] : std::vector<std::array<int64_t, 4>>{
             {1, 1, 1, 1}, {3, 2, 5, 37}, {8, 6, 128, 512}, {1, 4, 131, 64}, {2, 3, 300, 9}}) {
      const Tensor w = drawn({H, N, K}, 1), x = drawn({T, H, K}, 2), x_t = drawn({T, H, N}, 3);
      EXPECT_LT(largest(head_maps(x, w) - expected(x, w, false)), 2e-4);
      EXPECT_LT(largest(transposed_head_maps(x_t, w) - expected(x_t, w, true)), 2e-4);
    }
  });
  const Tensor w = drawn({2, 5, 37}, 1), x = drawn({3, 2, 37}, 2);  // another head's would not pass
  EXPECT_GT(largest(head_maps(x, w) - expected(x, w.flip(0), false)), 1);
}

// Parts of a storage, as a projection's queries and a joined weight are.
TEST(HeadMaps, OfPartsOfTensors) {
  const Tensor w = drawn({4, 24, 40}, 1).narrow(1, 8, 16), x = drawn({3, 4, 64}, 2);
  const Tensor part = x.narrow(2, 3, 40), transposed = x.narrow(2, 5, 16);
  EXPECT_LT(largest(head_maps(part, w) - expected(part, w, false)), 1e-4);
  EXPECT_LT(largest(transposed_head_maps(transposed, w) - expected(transposed, w, true)), 1e-4);
}

TEST(HeadMaps, KeepBfloat16) {
  const Tensor w = drawn({2, 20, 50}, 1).to(at::kBFloat16), x = drawn({3, 2, 50}, 2).to(w);
  const Tensor y = head_maps(x, w), back = transposed_head_maps(y, w);
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  EXPECT_LT(largest(y - expected(x, w, false)), 0x1p-8 * largest(y));
  EXPECT_LT(largest(back - expected(y, w, true)), 0x1p-8 * largest(back));
}

// The kernel has no backward: what records takes the fallback.
TEST(HeadMaps, AreDifferentiatedComposed) {
  const Tensor w = drawn({2, 20, 50}, 1).set_requires_grad(true),
               x = drawn({3, 2, 50}, 2).set_requires_grad(true);
  const Tensor y = head_maps(x, w), grad = drawn({3, 2, 20}, 3);
  EXPECT_LT(largest(y.detach() - expected(x, w, false).detach()), 1e-4);
  y.backward(grad);
  EXPECT_LT(largest(x.grad() - expected(grad, w, true).detach()), 1e-4);
  EXPECT_LT(largest(w.grad() - at::einsum("thn,thk->hnk", {grad, x}).detach()), 1e-4);
  const Tensor wide = w.detach().to(at::kDouble), x_wide = x.detach().to(at::kDouble);
  EXPECT_LT(largest(head_maps_composed(x_wide, wide, false) - expected(x_wide, wide, false)),
            1e-12);
}

// So does float64, which has no kernel.
TEST(HeadMaps, KeepFloat64) {
  const Tensor w = drawn({2, 20, 50}, 1).to(at::kDouble), x = drawn({3, 2, 50}, 2).to(at::kDouble);
  const Tensor y = head_maps(x, w);
  EXPECT_EQ(y.scalar_type(), at::kDouble);
  EXPECT_LT(largest(y - expected(x, w, false)), 1e-12);
  EXPECT_LT(largest(transposed_head_maps(y, w) - expected(y, w, true)), 1e-12);
}

TEST(HeadMaps, OfMetaTensorsAreShapes) {
  const Tensor w = drawn({2, 20, 50}, 1).to(at::kMeta), x = drawn({3, 2, 50}, 2).to(at::kMeta);
  const Tensor y = head_maps(x, w);
  EXPECT_TRUE(y.is_meta());
  EXPECT_EQ(y.sizes(), at::IntArrayRef({3, 2, 20}));
  EXPECT_EQ(transposed_head_maps(y, w).sizes(), x.sizes());
}

TEST(HeadMaps, RefuseShapesThatDoNotFit) {
  const Tensor w = drawn({2, 20, 50}, 1), x = drawn({3, 2, 50}, 2);
  EXPECT_THROW(head_maps(x.narrow(2, 0, 20), w), Error);
  EXPECT_THROW(transposed_head_maps(x, w), Error);
  EXPECT_THROW(head_maps(x.narrow(1, 0, 1), w), Error);
  EXPECT_THROW(head_maps(x.to(at::kHalf), w.to(at::kHalf)), Error);
  EXPECT_THROW(head_maps(x, w.to(at::kBFloat16)), Error);
  EXPECT_THROW(head_maps(x, w.to(at::kMeta)), Error);
  EXPECT_THROW(head_maps(x, w.transpose(1, 2).contiguous().transpose(1, 2)), Error);
}

}  // namespace
}  // namespace attnres::testing::head_maps_test
