#include "attnres/ops/transformed.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/forward_grad.h>

#include <functional>
#include <map>

#include "attnres/ops/depth_attention/depth_attention.h"
#include "attnres/ops/depth_attention/two_phase.h"
#include "attnres/ops/depth_scores/depth_scores.h"
#include "attnres/ops/gradient_slot.h"
#include "attnres/ops/matmul/matmul.h"
#include "attnres/ops/residual_streams/residual_streams.h"
#include "attnres/ops/rms_norm/rms_norm.h"
#include "attnres/ops/sinkhorn/sinkhorn.h"
#include "attnres/ops/situ/situ.h"
#include "attnres/support/error.h"

namespace attnres::transformed_test {
namespace {

using at::Tensor;
using ::testing::HasSubstr;

// Tensors with forward-mode tangents, while it lives.
class ForwardMode : public ::testing::Test {
 protected:
  void TearDown() override { torch::autograd::ForwardADLevel::release_idx(level_); }

  Tensor dual(const Tensor& x, const Tensor& tangent) const {
    return at::_make_dual(x, tangent, static_cast<int64_t>(level_));
  }
  Tensor dual(const Tensor& x) const { return dual(x, at::ones_like(x)); }
  Tensor tangent_of(const Tensor& x) const { return x._fw_grad(level_); }

 private:
  uint64_t level_ = torch::autograd::ForwardADLevel::get_next_idx();
};

std::string message_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// The tangent of f along all ones, by central differences.
Tensor difference(const std::function<Tensor(const Tensor&)>& f, const Tensor& x) {
  constexpr double kStep = 1e-6;
  return (f(x + kStep) - f(x - kStep)) / (2 * kStep);
}

TEST_F(ForwardMode, IsThatOfTheFormulaWhereThereIsOne) {
  at::manual_seed(1);
  const auto options = at::TensorOptions(at::kDouble);
  const Tensor x = at::randn({3, 6}, options), y = at::randn({3, 6}, options),
               gain = at::randn({6}, options), query = at::randn({6}, options),
               streams = at::randn({3, 2, 6}, options), map = at::randn({3, 2}, options),
               weight = at::randn({4, 6}, options);
  const std::map<std::string, std::function<Tensor(const Tensor&)>> functions = {
      {"depth_attention",
       [&](const Tensor& t) {
         return depth_attention({t, y}, query, gain, 1e-6);
       }},
      {"its weights",
       [&](const Tensor& t) {
         return depth_attention_weights({t, y}, query, gain, 1e-6);
       }},
      {"rms_norm", [&](const Tensor& t) { return rms_norm(t * y, gain, 1e-6); }},
      {"situ", [&](const Tensor& t) { return situ(t, y, 2, 3); }},
      {"depth_scores",
       [&](const Tensor& t) {
         return depth_scores({t, y}, {.query = query, .key_gain = gain});
       }},
      {"depth_scores, of the query",
       [&](const Tensor& t) {
         return depth_scores({x, y}, {.query = t, .key_gain = {}});
       }},
      {"weighted_sum",
       [&](const Tensor& t) {
         return weighted_sum({y, t}, map[0]);
       }},
      {"read_streams",
       [&](const Tensor& t) { return read_streams(streams * t.unsqueeze(1), map); }},
      {"write_streams",
       [&](const Tensor& t) {
         return write_streams(streams, {.mix_TMM = {}, .write_TM = map, .y_TD = t});
       }},
      {"project_normalised", [&](const Tensor& t) { return project_normalised(t, weight, 1e-6); }},
      {"sinkhorn",
       [&](const Tensor& t) {
         return sinkhorn((t * y).narrow(1, 0, 4).unflatten(1, {2, 2}), 1);
       }},
  };
  for (const auto& [name, f] : functions) {
    const Tensor tangent = tangent_of(f(dual(x)));
    ASSERT_TRUE(tangent.defined()) << name;
    EXPECT_TRUE(tangent.allclose(difference(f, x), 1e-5, 1e-7)) << name;
    EXPECT_GT(tangent.abs().max().item<double>(), 1e-3) << name;
  }
}

TEST_F(ForwardMode, IsRefusedWhereThereIsAKernelAlone) {
  const Tensor x = at::randn({3, 6}), gain = at::ones({6}), weight = at::randn({4, 6});
  const std::map<std::string, std::function<void()>> uses = {
      {"linear_map", [&] { linear_map(dual(x), MapWeight(weight)); }},
      {"with_slot", [&] { with_slot(dual(x)); }},
      {"two phases",
       [&] {
         std::vector<DepthSource> sources = {DepthSource(x)};
         depth_attention_phase_one(sources, 1, {{dual(gain), gain}}, 1e-6);
       }},
  };
  for (const auto& [name, use] : uses) {
    EXPECT_THAT(message_of(use), HasSubstr("forward-mode tangent")) << name;
  }
}

TEST_F(ForwardMode, OfAnotherTensorChangesNothing) {
  const Tensor x = at::randn({3, 6}), gain = at::ones({6});
  const Tensor other = dual(x);
  EXPECT_TRUE(is_transformed({x, other}));
  EXPECT_FALSE(is_transformed({x, gain, Tensor()}));
  EXPECT_NO_THROW(require_untransformed("rms_norm", {x, gain}));
  EXPECT_THAT(message_of([&] {
                require_untransformed("rms_norm", {gain, other});
              }),
              HasSubstr("rms_norm: its kernel has no forward-mode derivative"));
}

}  // namespace
}  // namespace attnres::transformed_test
