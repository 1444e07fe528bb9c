// What operations are composed of where they have no kernel: the same values and gradients as the
// kernels give. And what Meta functions give, and what is said of tensors on different devices.
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <gmock/gmock.h>

#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "attnres/ops/device_table.h"
#include "attnres/ops/linear_cross_entropy/linear_cross_entropy.h"
#include "attnres/ops/rms_norm/rms_norm.h"
#include "attnres/ops/rotary/rotary.h"
#include "attnres/ops/situ/situ.h"
#include "attnres/ops/swiglu/swiglu.h"
#include "attnres/support/error.h"
#include "tests/ops/against_formula.h"

namespace attnres::composed_test {
namespace {

using at::Tensor;
using testing::close;
using ::testing::HasSubstr;
using testing::Operation;
using testing::random;
using testing::Tensors;

constexpr double kEps = 1e-2;

// An operation, what it is composed of elsewhere, and inputs.
struct Pair {
  Operation operation, composed;
  Tensors inputs;
};

std::map<std::string, Pair> pairs(at::ScalarType dtype) {
  at::manual_seed(1);
  const auto table = [](const Tensor& x) {
    return rotary_table(4, 6, rotary_frequencies(8, 100), x.options());
  };
  const Tensor targets = at::tensor(std::vector<int64_t>{3, kIgnoredTarget, 0, 6, 6}, at::kLong);
  std::map<std::string, Pair> all = {
      {"rms_norm",
       {[](const Tensors& in) -> Tensors { return {rms_norm(in[0], in[1], kEps)}; },
        [](const Tensors& in) -> Tensors { return {rms_norm_composed(in[0], in[1], kEps)}; },
        {random({2, 5, 17}), random({17})}}},
      {"add_rms_norm",
       {[](const Tensors& in) -> Tensors {
          const auto [sum, normalized] = add_rms_norm(in[0], in[1], in[2], kEps);
          return {sum, normalized};
        },
        [](const Tensors& in) -> Tensors {
          const auto [sum, normalized] = add_rms_norm_composed(in[0], in[1], in[2], kEps);
          return {sum, normalized};
        },
        {random({5, 17}), random({5, 17}), random({17})}}},
      {"swiglu",
       {[](const Tensors& in) -> Tensors { return {swiglu(in[0], in[1])}; },
        [](const Tensors& in) -> Tensors { return {swiglu_composed(in[0], in[1])}; },
        {random({3, 33}), random({3, 33})}}},
      {"situ",
       {[](const Tensors& in) -> Tensors { return {situ(in[0], in[1], 2, 3)}; },
        [](const Tensors& in) -> Tensors { return {situ_composed(in[0], in[1], 2, 3)}; },
        {random({3, 33}), random({3, 33})}}},
      {"rotary",
       {[=](const Tensors& in) -> Tensors { return {apply_rotary(in[0], table(in[0]))}; },
        [=](const Tensors& in) -> Tensors { return {rotary_composed(in[0], table(in[0]))}; },
        {random({2, 6, 3, 8})}}}};
  if (dtype != at::kBFloat16) {  // whose gradients are products of bfloat16 numbers
    all["linear_cross_entropy"] = {
        [=](const Tensors& in) -> Tensors {
          return {linear_cross_entropy(in[0], in[1], targets, 0.5)};
        },
        [=](const Tensors& in) -> Tensors {
          return {linear_cross_entropy_composed(in[0], in[1], targets, 0.5)};
        },
        {random({5, 9}), random({7, 9})}};
  }
  return all;
}

class Composed : public testing::AgainstFormula {};

TEST_P(Composed, AgreesWithTheKernels) {
  for (const auto& [name, pair] : pairs(GetParam())) {
    SCOPED_TRACE(name);
    expect_equal(pair.operation, pair.composed, pair.inputs);
    Tensors inputs;
    for (const Tensor& input : pair.inputs) inputs.push_back(input.to(GetParam()));
    const Tensors composed = pair.composed(inputs), fused = pair.operation(inputs);
    for (size_t i = 0; i < fused.size(); ++i) {
      EXPECT_EQ(composed[i].scalar_type(), fused[i].scalar_type());
    }
    inputs[0] = inputs[0].flip(0);  // the comparison tells one input from another
    EXPECT_FALSE(close(pair.composed(inputs).back(), fused.back()));
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, Composed,
                         ::testing::Values(at::kFloat, at::kDouble, at::kBFloat16),
                         [](const auto& info) { return c10::toString(info.param); });

TEST(Composed, GivesShapesOnMeta) {
  const auto meta = at::TensorOptions(at::kMeta).dtype(at::kBFloat16);
  const Tensor gate = at::empty({3, 5}, meta), up = at::empty({3, 5}, meta);
  using Fused = Tensor(const Tensor&, const Tensor&, double, double);
  using Backward =
      std::tuple<Tensor, Tensor>(const Tensor&, const Tensor&, const Tensor&, double, double);
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  const auto fused = dispatcher.findSchemaOrThrow("attnres::situ_fused", "").typed<Fused>();
  const auto backward =
      dispatcher.findSchemaOrThrow("attnres::situ_fused_backward", "").typed<Backward>();
  const auto [grad_gate, grad_up] = backward.call(gate, gate, up, 2, 3);
  for (const Tensor& result :
       {situ(gate, up, 2, 3), fused.call(gate, up, 2, 3), grad_gate, grad_up, swiglu(gate, up)}) {
    EXPECT_TRUE(result.is_meta());
    EXPECT_EQ(result.sizes(), at::IntArrayRef({3, 5}));
    EXPECT_EQ(result.scalar_type(), at::kBFloat16);
  }
}

TEST(Composed, SaysWhichDevicesTensorsAreOn) {
  const Tensor x = at::ones({2, 4, 3, 6}), elsewhere = x.to(at::kMeta), gain = at::ones({6});
  const RotaryTable table = rotary_table(0, 4, rotary_frequencies(6, 100), x.options());
  const std::map<std::string, std::function<void()>> uses = {
      {"rms_norm: gain is on meta", [&] { rms_norm(x, gain.to(at::kMeta), kEps); }},
      {"swiglu: gate is Float [2, 4, 3, 6] on cpu", [&] { swiglu(x, elsewhere); }},
      {"situ: its tensors must be on one device, but are on cpu, meta",
       [&] { situ(x, elsewhere, 2, 3); }},
      {"rotary: its tensors must be on one device, but are on meta, cpu, cpu",
       [&] { apply_rotary(elsewhere, table); }},
  };
  for (const auto& [message, use] : uses) {
    try {
      use();
      ADD_FAILURE() << message;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(message));
    }
  }
}

int composed_number() {
  return 1;
}
int own_number() {
  return 2;
}

TEST(DeviceTable, HasAFunctionOfEachDevice) {
  DeviceTable<int()> table(&composed_number);
  const Tensor here = at::ones({1}), elsewhere = here.to(at::kMeta);
  EXPECT_EQ(table.of(here)(), 1);
  const OnDevice own(table, at::kMeta, &own_number);
  EXPECT_EQ(table.of(here)(), 1);
  EXPECT_EQ(table.of(elsewhere)(), 2);
}

}  // namespace
}  // namespace attnres::composed_test
