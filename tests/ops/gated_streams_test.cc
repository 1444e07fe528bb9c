#include "attnres/ops/gated_streams/gated_streams.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "attnres/ops/gradient_slot.h"
#include "attnres/support/error.h"
#include "tests/ops/against_formula.h"
#include "tests/ops/every_target.h"

namespace attnres::gated_streams_test {
namespace {

using at::Tensor;
using testing::on_every_target;
using testing::random;
using testing::Tensors;

constexpr double kEps = 1e-2;  // large: its part of the result must show

class GatedStreams : public testing::AgainstFormula {};

Tensors composed(const Tensor& H, const GatedStreamsMaps& maps) {
  const Tensor normed = maps.norm_ND * H * at::rsqrt(H.square().mean(-1, true) + kEps);
  const Tensor z = normed.flatten(1) / H.size(1);
  const Tensor gates =
      at::sigmoid(at::matmul(at::silu(at::matmul(z, maps.down_KC.t())), maps.up_CK.t()));
  Tensors results = {(gates.view_as(normed) * normed).mean(1)};
  if (maps.write_NC.defined()) {
    results.push_back(at::sigmoid(at::matmul(z, maps.write_NC.t())));
  }
  return results;
}

Tensors fused(const Tensor& H, const GatedStreamsMaps& maps) {
  const auto [x, write] = read_gated_streams(H, maps, kEps);
  return write.defined() ? Tensors{x, write} : Tensors{x};
}

// Of T tokens: the streams, and maps that matter.
Tensors inputs(int64_t T, int64_t n, int64_t D, int64_t K) {
  return {random({T, n, D}), random({n, D}), random({K, n * D}), random({n * D, K}),
          random({n, n * D})};
}

GatedStreamsMaps maps_of(const Tensors& in, bool writing) {
  return {in[1], in[2], in[3], writing ? in[4] : Tensor()};
}

TEST_P(GatedStreams, AreReadAsTheFormulaHasThem) {
  on_every_target([&] {
    for (const int64_t n : {1, 2, 4, 5, 16}) {
      for (const int64_t D : {1, 3, 8, 17, 64, 100}) {
        at::manual_seed(1);
        expect_equal([](const Tensors& in) { return fused(in[0], maps_of(in, true)); },
                     [](const Tensors& in) { return composed(in[0], maps_of(in, true)); },
                     inputs(5, n, D, 3));
      }
    }
  });
}

// What the output reads, and tokens of several blocks, the last of which is not full.
TEST_P(GatedStreams, MayWriteNothingAndFillSeveralBlocks) {
  for (const int64_t T : {1, 257, 700}) {
    at::manual_seed(1);
    const auto unused = [](const Tensors& in) { return 0 * in[4].sum(); };
    expect_equal(
        [&](const Tensors& in) -> Tensors {
          return {fused(in[0], maps_of(in, false))[0] + unused(in)};
        },
        [&](const Tensors& in) -> Tensors {
          return {composed(in[0], maps_of(in, false))[0] + unused(in)};
        },
        inputs(T, 4, 24, 5));
  }
}

TEST_P(GatedStreams, AreTheSameComposed) {
  at::manual_seed(1);
  expect_equal(
      [](const Tensors& in) -> Tensors {
        const auto [x, write] = read_gated_streams_composed(in[0], maps_of(in, true), kEps);
        return {x, write};
      },
      [](const Tensors& in) { return composed(in[0], maps_of(in, true)); }, inputs(5, 4, 17, 3));
}

TEST_P(GatedStreams, AddTheirGradientsInASlot) {
  at::manual_seed(1);
  expect_equal(
      [](const Tensors& in) -> Tensors {
        const Tensor H = with_slot(in[0] * 1);
        const Tensors read = fused(H, maps_of(in, true));
        return {read[0], read[1], fused(H, maps_of(in, false))[0] + H.sum(1)};
      },
      [](const Tensors& in) -> Tensors {
        const Tensors read = composed(in[0], maps_of(in, true));
        return {read[0], read[1], composed(in[0], maps_of(in, false))[0] + in[0].sum(1)};
      },
      inputs(9, 4, 24, 3));
}

TEST(GatedStreamsInASlot, HandAutogradNoGradients) {
  const Tensors in = inputs(5, 4, 8, 3);
  const Tensor H = with_slot(random({5, 4, 8}).set_requires_grad(true) * 1);
  bool given = false;
  H.register_hook([&](const Tensor& gradient) { given = given || gradient.defined(); });
  fused(H, maps_of(in, true))[0].sum().backward();
  EXPECT_FALSE(given);
  (H * 1).sum().backward();
  EXPECT_TRUE(given);
}

INSTANTIATE_TEST_SUITE_P(Dtypes, GatedStreams,
                         ::testing::Values(at::kFloat, at::kDouble, at::kBFloat16),
                         [](const auto& info) { return c10::toString(info.param); });

TEST(GatedStreamsOfNoTokens, AreNone) {
  Tensors in = inputs(0, 4, 8, 3);
  for (Tensor& tensor : in) tensor.set_requires_grad(true);
  const Tensors read = fused(in[0], maps_of(in, true));
  EXPECT_EQ(read[0].sizes(), at::IntArrayRef({0, 8}));
  read[0].sum().backward();
  EXPECT_EQ(in[3].grad().abs().max().item<double>(), 0);
}

TEST(GatedStreamsOfMetaTensors, HaveShapesAlone) {
  Tensors in = inputs(5, 4, 8, 3);
  for (Tensor& tensor : in) tensor = tensor.to(at::kMeta);
  const Tensors read = fused(in[0], maps_of(in, true));
  EXPECT_TRUE(read[0].is_meta());
  EXPECT_EQ(read[0].sizes(), at::IntArrayRef({5, 8}));
  EXPECT_EQ(read[1].sizes(), at::IntArrayRef({5, 4}));
}

TEST(GatedStreamsShapes, ThatDoNotFitAreRefused) {
  const Tensors in = inputs(5, 4, 8, 3);
  const GatedStreamsMaps right = maps_of(in, true);
  EXPECT_NO_THROW(read_gated_streams(in[0], right, kEps));
  EXPECT_THROW(read_gated_streams(in[0].flatten(1), right, kEps), Error);
  EXPECT_THROW(read_gated_streams(in[0].to(at::kInt), right, kEps), Error);
  EXPECT_THROW(read_gated_streams(random({5, 0, 8}), right, kEps), Error);
  for (Tensor GatedStreamsMaps::*map : {&GatedStreamsMaps::norm_ND, &GatedStreamsMaps::down_KC,
                                        &GatedStreamsMaps::up_CK, &GatedStreamsMaps::write_NC}) {
    GatedStreamsMaps wrong = right;
    wrong.*map = (right.*map).narrow(1, 1, right.up_CK.size(1) - 1);
    EXPECT_THROW(read_gated_streams(in[0], wrong, kEps), Error);
    wrong.*map = (right.*map).to(at::kMeta);
    EXPECT_THROW(read_gated_streams(in[0], wrong, kEps), Error);
  }
}

}  // namespace
}  // namespace attnres::gated_streams_test
