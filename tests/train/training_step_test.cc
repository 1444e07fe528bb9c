#include "attnres/train/step/training_step.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>

#include <cmath>
#include <vector>

#include "attnres/layers/experts.h"
#include "tests/model/small_models.h"
#include "tests/text/test_files.h"
#include "tests/tolerances.h"

namespace attnres::testing::training_step_test {
namespace {

using ::testing::HasSubstr;

constexpr double kRate = 0.02, kBalanceRate = 0.25;

// Four sequences, with targets that do not count, more of them in the last.
Batch whole_batch() {
  Batch batch = {random_ids(4, 12), random_ids(4, 12, 7)};
  batch.targets_BT.index_put_({at::tensor({0, 3, 3, 3, 3}), at::tensor({5, 1, 2, 6, 9})},
                              at::tensor(int64_t{-100}));
  return batch;
}
constexpr int64_t kTargets = 4 * 12 - 5;

Batch rows(const Batch& batch, int64_t begin, int64_t end) {
  return {batch.inputs_BT.slice(0, begin, end), batch.targets_BT.slice(0, begin, end)};
}

// Models of Kimi's layers, with experts, all equal.
struct Bench {
  explicit Bench(double clip = 0, const std::string& optimizer_name = "adamw",
                 bool recompute = false)
      : config{.optimizer = optimizer_name,
               .clip = clip,
               .expert_balance_rate = kBalanceRate,
               .recompute = recompute},
        optimizer(model, config),
        step(model, optimizer, config) {}

  StepResult update(const std::vector<Batch>& parts) {
    for (const Batch& part : parts) step.forward_backward(part);
    return step.update(kRate);
  }

  TrainConfig config;
  Transformer model = kimi_model(/*k3=*/false, block_attn_res());
  Optimizer optimizer;
  TrainingStep step;
};

std::vector<at::Tensor> values(const Transformer& model) {
  std::vector<at::Tensor> all;
  for (const Parameter& p : model.parameters().all()) all.push_back(p.tensor.detach().clone());
  return all;
}

double largest_difference(const Transformer& a, const Transformer& b) {
  const auto x = values(a), y = values(b);
  double largest = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    largest = std::max(largest, (x[i] - y[i]).abs().nan_to_num(INFINITY).max().item<double>());
  }
  return largest;
}

// The same from the mean loss of the whole batch: its gradient, clipped by hand, to the optimizer.
struct Expected {
  explicit Expected(double clip, const std::string& optimizer_name) : bench(clip, optimizer_name) {
    const Batch batch = whole_batch();
    const at::Tensor mean =
        bench.model.loss(batch.inputs_BT, batch.targets_BT, {.expert_loads = &expert_loads});
    mean.backward();
    loss = mean.item<double>();
    double squares = 0;
    for (const Parameter& p : bench.model.parameters().all()) {
      if (p.tensor.grad().defined()) squares += p.tensor.grad().square().sum().item<double>();
    }
    norm = std::sqrt(squares);
    for (const Parameter& p : bench.model.parameters().all()) {
      if (clip > 0 && norm > clip && p.tensor.grad().defined()) p.tensor.grad().mul_(clip / norm);
    }
    bench.optimizer.step(kRate, 1);
    for (const auto& [site, load_E] : expert_loads) {
      at::Tensor bias = bench.model.parameters().find(site, "e_score_correction_bias")->tensor;
      balance(bias, load_E, kBalanceRate);
    }
  }

  Bench bench;
  ExpertLoads expert_loads;
  double loss = 0, norm = 0;
};

TEST(TrainingStep, FollowsTheMeanLossHoweverItsBatchIsCut) {
  const Batch batch = whole_batch();
  const std::vector<std::vector<Batch>> cuts = {{batch},
                                                {rows(batch, 0, 2), rows(batch, 2, 4)},
                                                {rows(batch, 0, 1), rows(batch, 1, 4)},
                                                {rows(batch, 3, 4), rows(batch, 0, 3)}};
  for (const char* optimizer : {"adamw", "muon"}) {
    const double norm = Expected(0, optimizer).norm;
    for (const double clip : {0.0, norm / 3, norm * 3}) {
      SCOPED_TRACE(fmt::format("{}, clip {}", optimizer, clip));
      const Expected expected(clip, optimizer);
      EXPECT_GT(largest_difference(expected.bench.model, Bench().model), 1e-3);
      for (const auto& parts : cuts) {
        Bench bench(clip, optimizer);
        const StepResult result = bench.update(parts);
        EXPECT_NEAR(result.loss, expected.loss, 1e-12);
        EXPECT_NEAR(result.gradient_norm, expected.norm, 1e-10 * expected.norm);
        EXPECT_EQ(result.targets, kTargets);
        ASSERT_EQ(result.expert_loads.size(), expected.expert_loads.size());
        for (const auto& [site, load_E] : expected.expert_loads) {
          EXPECT_TRUE(at::equal(result.expert_loads.at(site), load_E));
        }
        // AdamW's divisor is rounded to float32.
        EXPECT_LT(largest_difference(bench.model, expected.bench.model), 1e-8);
      }
    }
  }
}

// The mean of the parts' means, which parts of different sizes tell from the mean.
TEST(TrainingStep, ItsTestSeesPartsOfEqualWeight) {
  const Batch batch = whole_batch();
  Bench bench;
  double loss = 0;
  for (const Batch& part : {rows(batch, 0, 1), rows(batch, 1, 4)}) {
    const at::Tensor mean = bench.model.loss(part.inputs_BT, part.targets_BT);
    mean.div(2).backward();
    loss += mean.item<double>() / 2;
  }
  bench.optimizer.step(kRate, 1);
  const Expected expected(0, "adamw");
  EXPECT_GT(std::abs(loss - expected.loss), 1e-4);
  EXPECT_GT(largest_difference(bench.model, expected.bench.model), 1e-4);
}

// Rows of packed documents are longer than what they hold. As if what fills them up were not there.
TEST(TrainingStep, CountsNothingThatFillsUpRows) {
  constexpr int64_t kFillers = 7;
  const Batch batch = whole_batch();
  const auto longer = [&](bool says_so) {
    Batch filled = {at::constant_pad_nd(batch.inputs_BT, {0, kFillers}, /*value=*/3),
                    at::constant_pad_nd(batch.targets_BT, {0, kFillers}, -100)};
    if (says_so) filled.filled.assign(4, batch.inputs_BT.size(1));
    return filled;
  };
  for (const bool recompute : {false, true}) {
    Bench plain(0, "adamw", recompute), filled(0, "adamw", recompute),
        silent(0, "adamw", recompute);
    const StepResult expected = plain.update({batch}), result = filled.update({longer(true)});
    EXPECT_NEAR(result.loss, expected.loss, 1e-12);
    EXPECT_EQ(result.targets, kTargets);
    EXPECT_EQ(result.tokens, 4 * 12);
    EXPECT_EQ(expected.tokens, 4 * 12);
    ASSERT_FALSE(expected.expert_loads.empty());
    for (const auto& [site, load_E] : expected.expert_loads) {
      EXPECT_TRUE(at::equal(result.expert_loads.at(site), load_E));
    }
    EXPECT_LT(largest_difference(filled.model, plain.model), 1e-8);
    // Negative control: where nothing says so they move biases.
    EXPECT_EQ(silent.update({longer(false)}).tokens, 4 * (12 + kFillers));
    EXPECT_GT(largest_difference(silent.model, plain.model), kBalanceRate / 2);
  }
}

// One part chose other experts than the whole: balanced by it alone, biases would move otherwise.
TEST(TrainingStep, BalancesExpertsByTheLoadsOfAllParts) {
  const Batch batch = whole_batch();
  Bench whole, part;
  whole.update({rows(batch, 0, 3), rows(batch, 3, 4)});
  part.update({rows(batch, 3, 4)});
  const Expected expected(0, "adamw");
  bool differ = false;
  for (const Parameter& p : expected.bench.model.parameters().all()) {
    if (p.kind != ParameterKind::router_bias) continue;
    const auto of = [&](const Bench& bench) {
      return bench.model.parameters().find(p.site, p.role)->tensor;
    };
    EXPECT_TRUE(at::equal(of(whole), p.tensor));
    differ = differ || !at::equal(of(part), p.tensor);
  }
  EXPECT_TRUE(differ);
}

TEST(TrainingStep, BeginsAnewAfterAnUpdate) {
  const Batch batch = whole_batch();
  Bench once, twice;
  twice.step.forward_backward(rows(batch, 0, 2));
  twice.step.update(/*learning_rate=*/0);
  for (const Parameter& p : twice.model.parameters().all()) EXPECT_FALSE(p.tensor.grad().defined());
  // At a rate of zero only biases have moved.
  for (const Parameter& p : once.model.parameters().all()) {
    if (p.kind == ParameterKind::router_bias) {
      p.tensor.copy_(twice.model.parameters().find(p.site, p.role)->tensor);
    }
  }
  const StepResult expected = once.update({batch}), result = twice.update({batch});
  EXPECT_EQ(result.loss, expected.loss);
  EXPECT_EQ(result.gradient_norm, expected.gradient_norm);
  EXPECT_EQ(result.targets, expected.targets);
}

TEST(TrainingStep, RefusesWhatIsNotFiniteAndMovesNothing) {
  const Batch batch = whole_batch();
  Bench bench;
  const at::Tensor head = bench.model.parameters().find(bench.model.sublayers(), "head")->tensor;
  const at::NoGradGuard not_recording;
  const double good = head[0][0].item<double>();
  const auto refused = [&] {
    const at::AutoGradMode recording(true);
    return message_of<Diverged>([&] { bench.update({batch}); });
  };
  for (const double bad : {static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
    head[0][0].fill_(bad);
    const std::vector<at::Tensor> before = values(bench.model);
    EXPECT_THAT(refused(), HasSubstr("the loss is "));
    const std::vector<at::Tensor> after = values(bench.model);
    for (size_t i = 0; i < before.size(); ++i) {
      EXPECT_TRUE(at::equal(after[i].nan_to_num(), before[i].nan_to_num()));
    }
    EXPECT_EQ(bench.optimizer.updates, 0);
  }
  // The next step is a step like any other.
  head[0][0].fill_(good);
  const at::AutoGradMode recording(true);
  Bench fresh;
  EXPECT_EQ(bench.update({batch}).gradient_norm, fresh.update({batch}).gradient_norm);
  EXPECT_EQ(largest_difference(bench.model, fresh.model), 0);
}

TEST(TrainingStep, RefusesTargetsOfWhichNoneCounts) {
  Bench bench;
  Batch batch = whole_batch();
  batch.targets_BT.fill_(-100);
  EXPECT_THAT(message_of<Error>([&] { bench.update({batch}); }), HasSubstr("none of its targets"));
  EXPECT_EQ(largest_difference(bench.model, Bench().model), 0);
  EXPECT_THAT(message_of<Error>([&] { bench.step.update(kRate); }), HasSubstr("none of its"));
}

}  // namespace
}  // namespace attnres::testing::training_step_test
