// Models whose parameters are float32 and whose activations are bfloat16.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <gtest/gtest.h>

#include "attnres/layers/experts.h"
#include "attnres/model/transformer.h"
#include "tests/model/kinds_of_models.h"
#include "tests/tolerances.h"

namespace attnres::testing::precision_test {
namespace {

const Precision kMixed = {at::kFloat, at::kBFloat16};

// |a - b| / |b| in the L2 norm.
double distance(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor wide_a = a.to(at::kDouble), wide_b = b.to(at::kDouble);
  return ((wide_a - wide_b).norm() / wide_b.norm().clamp_min(1e-9)).item<double>();
}

// Less far from where it starts: where scores saturate, a rounding decides.
Transformer gentle(Transformer model) {
  const at::NoGradGuard not_recording;
  for (const Parameter& p : model.parameters().all()) {
    if (p.kind == ParameterKind::matrix) at::Tensor(p.tensor).mul_(0.4);
    if (p.kind == ParameterKind::pseudo_query) at::Tensor(p.tensor).mul_(0.2);
  }
  return model;
}

class EveryKind : public ::testing::TestWithParam<KindOfModel> {};

INSTANTIATE_TEST_SUITE_P(Kinds, EveryKind, ::testing::ValuesIn(every_kind_of_model()),
                         [](const auto& info) { return info.param.name; });

TEST_P(EveryKind, KeepsActivationsInBfloat16) {
  const Transformer model = GetParam().make_in(kMixed);
  DepthState state = model.embed(random_ids(2, 7));
  while (true) {
    for (const at::Tensor& tensor : state.sealed) EXPECT_EQ(tensor.scalar_type(), at::kBFloat16);
    for (const at::Tensor& tensor : state.open) EXPECT_EQ(tensor.scalar_type(), at::kBFloat16);
    if (state.pending.defined()) {
      EXPECT_EQ(state.pending.scalar_type(), at::kBFloat16);
    }
    if (state.site == model.sublayers()) break;
    model.run(state, state.site + 1);
  }
  EXPECT_EQ(model.output(state).scalar_type(), at::kBFloat16);
}

// Gradients of all parameters, one after the other in one tensor.
at::Tensor gradients(const Transformer& model, const at::Tensor& ids, const at::Tensor& targets,
                     const RunContext& context = {}) {
  model.loss(ids, targets, context).backward();
  std::vector<at::Tensor> all;
  for (const Parameter& p : model.parameters().all()) {
    if (!p.tensor.grad().defined()) continue;
    EXPECT_EQ(p.tensor.grad().scalar_type(), p.tensor.scalar_type());
    all.push_back(p.tensor.grad().flatten());
    p.tensor.mutable_grad().reset();
  }
  return at::cat(all);
}

TEST_P(EveryKind, IsTheModelOfFloat64ButForRounding) {
  const Transformer mixed = gentle(GetParam().make_in(kMixed)), exact = gentle(GetParam().make());
  const at::Tensor ids = random_ids(2, 7), targets = random_ids(2, 7, 6);
  // A rounding can send a token to another expert.
  const double more = mixed.config().settings<ExpertsSettings>().count > 0 ? 8 : 1;
  const double expected = exact.loss(ids, targets).item<double>();
  const at::Tensor loss = mixed.loss(ids, targets);
  EXPECT_EQ(loss.scalar_type(), at::kFloat);
  EXPECT_NEAR(loss.item<double>(), expected, more * 0.01 * expected);
  EXPECT_LT(distance(mixed.hidden(ids), exact.hidden(ids)), more * 0.03);
  const at::Tensor actual = gradients(mixed, ids, targets), right = gradients(exact, ids, targets);
  EXPECT_LT(distance(actual, right), more > 1 ? 0.4 : 0.2);
  EXPECT_GT(distance(actual, gradients(exact, ids, targets.flip(1))), 0.5);
}

TEST_P(EveryKind, RecomputesWhatItComputed) {
  const Transformer model = gentle(GetParam().make_in(kMixed));
  const at::Tensor ids = random_ids(2, 7), targets = random_ids(2, 7, 6);
  const at::Tensor plain = gradients(model, ids, targets);
  EXPECT_LT(distance(gradients(model, ids, targets, {.recompute = true}), plain), 0.02);
}

TEST_P(EveryKind, DecodesWhatItReadsAtOnce) {
  const Transformer model = gentle(GetParam().make_in(kMixed));
  const at::NoGradGuard not_recording;
  const at::Tensor ids = random_ids(2, 6);
  const at::Tensor whole = model.hidden(ids);
  SideBySide decoded = side_by_side(model, 2, 6);
  const at::Tensor prompt = hidden_of(model, ids.narrow(1, 0, 4), decoded);
  const at::Tensor fifth = hidden_of(model, ids.narrow(1, 4, 1), decoded);
  const at::Tensor sixth = hidden_of(model, ids.narrow(1, 5, 1), decoded);
  // Deep delta's gates magnify what a rounding does that sends a token to another expert.
  const double most = GetParam().name == "kimi_deep_delta" ? 0.15 : 0.05;
  EXPECT_LT(distance(at::cat({prompt, fifth, sixth}, 1), whole), most);
  EXPECT_GT(distance(at::cat({prompt, sixth, fifth}, 1), whole), most);
}

}  // namespace
}  // namespace attnres::testing::precision_test
