#include "attnres/model/stage_run.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/ones_like.h>
#include <c10/core/Allocator.h>
#include <gtest/gtest.h>

#include <map>

#include "attnres/support/error.h"
#include "tests/model/stages.h"
#include "tests/tolerances.h"

namespace attnres::testing::stage_run_test {
namespace {

using Gradients = std::map<std::pair<int, std::string>, at::Tensor>;  // by site and role

// Takes them from the parameters, and adds them to those of other stages.
void take_gradients(const Transformer& model, Gradients& sums) {
  for (const Parameter& p : model.parameters().all()) {
    if (!is_differentiated(p.kind) || p.kind == ParameterKind::head) continue;
    at::Tensor& gradient = p.tensor.mutable_grad();
    EXPECT_TRUE(gradient.defined()) << "stage from site " << only_range(model).first
                                    << " has no use for " << p.role << " of site " << p.site;
    if (!gradient.defined()) continue;
    at::Tensor& sum = sums[{p.site, p.role}];
    sum = sum.defined() ? sum + gradient : gradient;
    gradient.reset();
  }
}

// Another process's: nothing is shared.
CutState sent(const CutState& cut) {
  CutState copy;
  for (const at::Tensor& t : cut.sealed) copy.sealed.push_back(t.defined() ? t.clone() : t);
  for (const at::Tensor& t : cut.open) copy.open.push_back(t.defined() ? t.clone() : t);
  return copy;
}

std::shared_ptr<const Spans> whole_sequence(int64_t tokens) {
  return std::make_shared<Spans>(Spans::whole(1, tokens));
}

struct Pass {
  at::Tensor hidden;
  Gradients gradients;
};

// `sealed_factor`: of the sealed tensors' gradients on their way.
Pass pass_through(const std::vector<Transformer>& stages, const at::Tensor& ids,
                  const at::Tensor& grad_hidden, const RunContext& context,
                  double sealed_factor = 1) {
  std::vector<StageRun> runs;
  runs.emplace_back(stages[0], Batch{ids, {}}, only_range(stages[0]), context);
  const auto spans = std::make_shared<Spans>(Spans::whole(ids.size(0), ids.size(1)));
  for (size_t i = 1; i < stages.size(); ++i) {
    runs.emplace_back(stages[i], sent(runs.back().after()), spans, only_range(stages[i]), context);
  }
  Pass pass;
  pass.hidden = runs.back().after().open.at(0);
  CutState gradients = {.open = {grad_hidden}};
  for (size_t i = stages.size(); i-- > 0;) {
    gradients = runs[i].backward(sent(gradients));
    for (at::Tensor& sealed : gradients.sealed) {
      if (sealed.defined()) sealed = sealed * sealed_factor;
    }
    take_gradients(stages[i], pass.gradients);
  }
  return pass;
}

class EveryStageRun : public ::testing::TestWithParam<Mixing> {};

INSTANTIATE_TEST_SUITE_P(Mechanisms, EveryStageRun, ::testing::ValuesIn(every_variant()),
                         [](const auto& info) { return info.param.name; });

TEST_P(EveryStageRun, GivesTheGradientsOfTheWhole) {
  const Json& mixing = GetParam().json;
  const at::Tensor ids = random_ids(2, 7);
  const Transformer whole = small_model(mixing);
  const at::Tensor expected_hidden = whole.hidden(ids);
  const at::Tensor grad_hidden = at::cos(expected_hidden.detach() * 3);
  expected_hidden.backward(grad_hidden);
  Gradients expected;
  take_gradients(whole, expected);

  const auto largest_error = [&](const Pass& pass) {
    EXPECT_EQ(pass.gradients.size(), expected.size());
    double largest = 0;
    for (const auto& [name, gradient] : expected) {
      largest = std::max(largest, relative_error(pass.gradients.at(name), gradient));
    }
    return largest;
  };
  for (const auto& ranges : ways_to_cut_three_layers()) {
    const auto stages = small_stages(mixing, ranges);
    for (const bool recompute : {false, true}) {
      const Pass pass =
          pass_through(stages, ids, grad_hidden.flatten(0, 1), {.recompute = recompute});
      EXPECT_TRUE(pass.hidden.equal(expected_hidden.flatten(0, 1))) << ranges.size() << " stages";
      EXPECT_LT(largest_error(pass), 1e-12)
          << ranges.size() << " stages" << (recompute ? ", recomputed" : "");
    }
  }
  // Negative control: sealed tensors whose gradients count twice.
  const auto stages = small_stages(mixing, ranges_between({0, 3, 7}));
  const bool seals = !whole.mixer().plan(3).sealed.empty();
  const double wrong = largest_error(pass_through(stages, ids, grad_hidden.flatten(0, 1), {}, 2));
  EXPECT_EQ(wrong > 1e-12, seals) << wrong;
}

TEST(StageRun, AddsTheSealedsGradientsInFloat32) {
  const auto stages =
      small_stages(attn_res(), ranges_between({0, 4, 7}), {.precision = at::kBFloat16});
  const at::Tensor ids = random_ids(1, 5);
  const StageRun first(stages[0], Batch{ids, {}}, only_range(stages[0]));
  StageRun second(stages[1], first.after(), whole_sequence(5), only_range(stages[1]));
  EXPECT_EQ(first.after().sealed.size(), 5u);
  const CutState gradients = second.backward({.open = {at::ones_like(second.after().open[0])}});
  for (const at::Tensor& sum : gradients.sealed) EXPECT_EQ(sum.scalar_type(), at::kFloat);
}

TEST(StageRun, RefusesWhatItCannotDo) {
  const auto stages = small_stages(block_attn_res(2), ranges_between({0, 3, 7}));
  const at::Tensor ids = random_ids(1, 5);
  EXPECT_THROW(StageRun(stages[1], Batch{ids, {}}, only_range(stages[1])), Error);
  StageRun first(stages[0], Batch{ids, {}}, only_range(stages[0]));
  EXPECT_THROW(StageRun(stages[0], first.after(), whole_sequence(5), only_range(stages[1])), Error);
  EXPECT_THROW(first.backward({}), Error);
  StageRun again(stages[0], Batch{ids, {}}, only_range(stages[0]));
  again.backward(sent(again.after()));
  EXPECT_THROW(again.backward(sent(again.after())), Error);
  const at::NoGradGuard not_recording;
  StageRun plain(stages[0], Batch{ids, {}}, only_range(stages[0]));
  EXPECT_FALSE(plain.after().open[0].requires_grad());
  EXPECT_THROW(plain.backward(sent(plain.after())), Error);
}

// Counts what this thread allocates in pieces of one size.
class Allocations : public c10::MemoryReportingInfoBase {
 public:
  explicit Allocations(int64_t size) : size_(size) {}
  void reportMemoryUsage(void*, int64_t size, size_t, size_t, c10::Device) override {
    count += size == size_ ? 1 : 0;
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t count = 0;

 private:
  int64_t size_;
};

// Tensors as large as a source that a recomputed backward allocates.
double allocated(const Json& depth_mixing, int64_t layers) {
  const Transformer model = small_model(depth_mixing, {.layers = layers});
  const at::Tensor ids = random_ids(1, 5), hidden = model.hidden(ids, {.recompute = true});
  const auto allocations =
      std::make_shared<Allocations>(hidden.numel() * static_cast<int64_t>(sizeof(double)));
  const c10::DebugInfoGuard watching(c10::DebugInfoKind::PROFILER_STATE, allocations);
  hidden.sum().backward();
  return static_cast<double>(allocations->count);
}

// Twice as deep, a backward allocates twice as much: no span makes a gradient of its own for every
// earlier source. Negative control: a mechanism whose every site adds up all sources, one by one.
TEST(Recomputation, AddsTheGradientsOfSourcesInPlace) {
  EXPECT_LT(allocated(attn_res(), 16), 2.5 * allocated(attn_res(), 8));
  const Json dense = {{"type", "dense_net"}};
  EXPECT_GT(allocated(dense, 16), 3 * allocated(dense, 8));
}

}  // namespace
}  // namespace attnres::testing::stage_run_test
