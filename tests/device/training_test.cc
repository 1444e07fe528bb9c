// Training on a device that is not the CPU: what a step reads, and its numbers.
#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <algorithm>

#include "attnres/train/step/probe.h"
#include "attnres/train/step/training_step.h"
#include "tests/device/device_models.h"
#include "tests/device/near_json.h"
#include "tests/tolerances.h"

namespace attnres::testing::device_training_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

// Rows of documents, of which one ends early; targets that do not count.
Batch packed_batch(uint64_t seed) {
  Batch batch = {random_ids(3, 8, seed), random_ids(3, 8, seed + 1), {5, 3, 8, 2, 6}, {8, 8, 7}};
  batch.targets_BT.index_put_({at::tensor({0, 1, 2}), at::tensor({5, 1, 7})},
                              at::tensor(int64_t{-100}));
  return batch;
}

Batch plain_batch(uint64_t seed) {
  return {random_ids(2, 8, seed), random_ids(2, 8, seed + 1)};
}

// What the host reads in a step: the loss, the squared norm, and the loads.
std::string one_copy(const StepResult& step) {
  int64_t numbers = 2;
  for (const auto& [site, load_E] : step.expert_loads) numbers += load_E.numel();
  return fmt::format("copy of {} numbers", numbers);
}

// The same training here and there.
class Both {
 public:
  explicit Both(Transformer here, const TrainConfig& config)
      : there_(on_pretend_device(here)), here_(std::move(here)), config_(config) {}

  // Of batches, in parts each: equal steps, each of which reads one scalar at most.
  void expect_equal_steps(const std::vector<std::vector<Batch>>& batches, double tolerance) {
    Optimizer optimizer_here(here_, config_), optimizer_there(there_, config_);
    TrainingStep step_here(here_, optimizer_here, config_),
        step_there(there_, optimizer_there, config_);
    for (const std::vector<Batch>& parts : batches) {
      const StepResult expected = take(step_here, parts);
      const HostReads reads;
      const StepResult got = take(step_there, parts);
      EXPECT_THAT(reads.list(), ElementsAre(one_copy(got)));
      EXPECT_NEAR(got.loss, expected.loss, tolerance * expected.loss);
      EXPECT_NEAR(got.gradient_norm, expected.gradient_norm, tolerance * expected.gradient_norm);
      EXPECT_EQ(got.targets, expected.targets);
      EXPECT_EQ(got.tokens, expected.tokens);
      ASSERT_EQ(got.expert_loads.size(), expected.expert_loads.size());
      for (const auto& [site, load_E] : expected.expert_loads) {
        EXPECT_TRUE(got.expert_loads.at(site).equal(load_E)) << site;
      }
    }
    expect_equal_parameters(tolerance);
  }

  // Of the loss of a batch, with gradients that every parameter has.
  void expect_equal_gradients(const Batch& batch, double tolerance,
                              const RunContext& context = {}) {
    here_.loss_sum(batch, context).sum.backward();
    there_.loss_sum(batch, context).sum.backward();
    for_each([&](const Parameter& here, const Parameter& there) {
      ASSERT_EQ(here.tensor.grad().defined(), there.tensor.grad().defined()) << here.role;
      if (!here.tensor.grad().defined()) return;
      EXPECT_TRUE(there.tensor.grad().device() == pretend_device());
      EXPECT_TRUE(close(there.tensor.grad().cpu(), here.tensor.grad(), tolerance)) << here.role;
    });
  }

  const Transformer& here() const { return here_; }
  const Transformer& there() const { return there_; }

 private:
  static StepResult take(TrainingStep& step, const std::vector<Batch>& parts) {
    for (const Batch& part : parts) step.forward_backward(part);
    return step.update(/*learning_rate=*/1e-3);
  }

  template <class F>
  void for_each(const F& f) const {
    const auto &here = here_.parameters().all(), &there = there_.parameters().all();
    for (size_t i = 0; i < here.size(); ++i) f(here[i], there[i]);
  }

  void expect_equal_parameters(double tolerance) const {
    for_each([&](const Parameter& here, const Parameter& there) {
      EXPECT_TRUE(close(there.tensor.detach().cpu(), here.tensor.detach(), tolerance))
          << here.site << " " << here.role;
    });
  }

  Transformer there_, here_;
  TrainConfig config_;
};

class DeviceTrainingOf : public ::testing::TestWithParam<KindOfModel> {};

INSTANTIATE_TEST_SUITE_P(Kinds, DeviceTrainingOf, ::testing::ValuesIn(every_kind_of_model()),
                         [](const auto& info) { return info.param.name; });

// Softmaxes of scores that reach tens multiply roundings by them, and streams without norms grow.
constexpr double kTolerance = 1e-7;

TEST_P(DeviceTrainingOf, TrainsAsOnTheCpu) {
  Both both(GetParam().make(), {.clip = 0.5, .expert_balance_rate = 0.1});
  both.expect_equal_steps({{packed_batch(5), plain_batch(9)}}, kTolerance);
}

TEST_P(DeviceTrainingOf, RecomputesAsOnTheCpu) {
  Both both(GetParam().make(), {});
  both.expect_equal_gradients(packed_batch(3), kTolerance, {.recompute = true});
}

TEST_P(DeviceTrainingOf, IsProbedAsOnTheCpu) {
  const Both both(GetParam().make(), {});
  const Batch batch = {random_ids(1, 8), random_ids(1, 8, 7)};
  const ProbeReading expected = probe(both.here(), batch), got = probe(both.there(), batch);
  expect_near(Json(got.lines), Json(expected.lines), kTolerance);
  EXPECT_EQ(got.depth_weights.has_value(), expected.depth_weights.has_value());
}

TEST(DeviceTraining, OfManyStepsIsAsOnTheCpu) {
  for (const std::string optimizer : {"adamw", "muon"}) {
    for (const bool kimi : {false, true}) {
      Both both(kimi ? kimi_model(/*k3=*/true, block_attn_res()) : small_model(block_attn_res()),
                {.optimizer = optimizer, .clip = 0.5, .expert_balance_rate = 0.1});
      both.expect_equal_steps({{plain_batch(3)}, {packed_batch(5)}, {plain_batch(7)}}, kTolerance);
    }
  }
}

TEST(DeviceTraining, InFloat32IsNearTheCpus) {
  for (const bool kimi : {false, true}) {
    Both both(kimi ? kimi_model(/*k3=*/false, block_attn_res(), at::kFloat)
                   : small_model(block_attn_res(), {.precision = at::kFloat}),
              {});
    both.expect_equal_gradients(packed_batch(3), 1e-3);
  }
}

// Products, norms and softmaxes round at other places.
TEST(DeviceTraining, InBfloat16HasTheCpusLoss) {
  const Precision mixed = {at::kFloat, at::kBFloat16};
  for (const Json& mixing : {residual(), block_attn_res()}) {
    const Transformer here = small_model(mixing, {.precision = mixed}),
                      there = on_pretend_device(here);
    const LossSum expected = here.loss_sum(packed_batch(3)), got = there.loss_sum(packed_batch(3));
    EXPECT_NEAR(got.sum.item<double>(), expected.sum.item<double>(),
                0.02 * expected.sum.item<double>());
    got.sum.backward();
    for (const Parameter& p : there.parameters().all()) {
      EXPECT_EQ(p.tensor.grad().scalar_type(), at::kFloat) << p.role;
    }
  }
}

// Negative control: other numbers there are found.
TEST(DeviceTraining, OfAnotherModelIsNotAsOnTheCpu) {
  const Transformer here = small_model(block_attn_res()), there = on_pretend_device(here);
  const Parameter& query = *there.parameters().find(5, "pseudo_query");
  query.tensor.detach().add_(0.01);
  const auto gradient = [](const Transformer& model) {
    model.loss_sum(plain_batch(3)).sum.backward();
    return model.parameters().find(0, "q_proj")->tensor.grad().cpu();
  };
  EXPECT_FALSE(close(gradient(there), gradient(here), kTolerance));
}

// A model that is drawn there starts with the CPU's numbers.
TEST(DeviceTraining, StartsWithTheCpusNumbers) {
  const ModelConfig config = kimi_config(/*k3=*/true, block_attn_res());
  const Transformer here(config, kSmallVocabulary, /*seed=*/1),
      there(config, kSmallVocabulary, /*seed=*/1, {}, pretend_device());
  for (size_t i = 0; i < here.parameters().all().size(); ++i) {
    EXPECT_TRUE(there.parameters().all()[i].tensor.detach().cpu().equal(
        here.parameters().all()[i].tensor.detach()));
  }
}

TEST(DeviceTraining, TakesIdsAndTargetsOfEitherMemory) {
  const Transformer model = on_pretend_device(small_model(block_attn_res()));
  const at::Tensor ids_BT = random_ids(2, 8), targets_BT = random_ids(2, 8, 5);
  const at::Tensor of_host = model.loss(ids_BT, targets_BT),
                   of_device =
                       model.loss(ids_BT.to(pretend_device()), targets_BT.to(pretend_device()));
  EXPECT_EQ(of_device.item<double>(), of_host.item<double>());
}

// In the host's memory, without waiting.
TEST(DeviceTraining, ChecksTargets) {
  const Transformer model = on_pretend_device(small_model(block_attn_res()));
  Batch batch = plain_batch(3);
  batch.targets_BT[1][2] = kSmallVocabulary;
  const HostReads reads;
  EXPECT_THAT([&] { model.loss_sum(batch); },
              ThrowsMessage<Error>(HasSubstr("targets[10] is 50, but must be in [0, 50)")));
  EXPECT_THAT(reads.list(), IsEmpty());
}

// By itself, so that the host waits for nothing: a target below 0 would otherwise count as another.
TEST(DeviceTraining, LetsTheDeviceCheckItsTargets) {
  const Transformer model = on_pretend_device(small_model(block_attn_res()));
  for (const int64_t wrong : {kSmallVocabulary, int64_t{-5}}) {
    Batch batch = plain_batch(3);
    batch.targets_BT[1][2] = wrong;
    const at::Tensor there_BT = batch.targets_BT.to(pretend_device());
    const at::Tensor hidden_TD = model.hidden(batch.inputs_BT).flatten(0, 1);
    const HostReads reads;
    EXPECT_THAT([&] { model.loss_sum_of(hidden_TD, there_BT); },
                ThrowsMessage<c10::Error>(HasSubstr("a target is neither in [0, V) nor -100")));
    EXPECT_THAT(reads.list(), IsEmpty());
    EXPECT_THROW(model.log_probabilities(batch.inputs_BT, there_BT), c10::Error);
  }
}

// Those of the host are checked there, before they are moved.
TEST(DeviceTraining, ChecksIds) {
  const Transformer model = on_pretend_device(small_model(block_attn_res()));
  for (const int64_t wrong : {kSmallVocabulary, int64_t{-1}}) {
    Batch batch = plain_batch(3);
    batch.inputs_BT[1][2] = wrong;
    const HostReads reads;
    EXPECT_THAT([&] { model.loss_sum(batch); },
                ThrowsMessage<Error>(HasSubstr(fmt::format("token id {} is out of range", wrong))));
    EXPECT_THAT([&] { model.hidden(batch.inputs_BT.to(pretend_device())); },
                ThrowsMessage<c10::Error>(HasSubstr("a token id is out of range")));
    EXPECT_THAT(reads.list(), IsEmpty());
  }
}

// An expert that no token chooses, and what it would make of them is infinite.
TEST(DeviceTraining, LeavesOutWhatAnExpertWasNotAskedFor) {
  const Transformer here = kimi_model(/*k3=*/false, block_attn_res());
  const int site = 3;  // the first of experts
  here.parameters().find(site, "e_score_correction_bias")->tensor.detach()[1] = -100;
  for (const char* role : {"w1", "w2", "w3"}) {
    here.parameters().find(site, role)->tensor.detach()[1].mul_(1e150);
  }
  const Transformer there = on_pretend_device(here);
  const auto gradients = [](const Transformer& model) {
    const at::Tensor loss = model.loss_sum(plain_batch(3)).sum;
    loss.backward();
    std::vector<at::Tensor> all = {loss.detach().cpu()};
    for (const Parameter& p : model.parameters().all()) {
      if (p.tensor.grad().defined()) all.push_back(p.tensor.grad().cpu());
    }
    return all;
  };
  const std::vector<at::Tensor> expected = gradients(here), got = gradients(there);
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(close(got[i], expected[i], kTolerance)) << i;
}

// As where a row is broken: nothing has moved.
TEST(DeviceTraining, DropsAStepThatDiverges) {
  Both both(small_model(block_attn_res()), {});
  const Transformer& model = both.there();
  const at::Tensor gain = model.parameters().find(0, "input_norm")->tensor.detach();
  gain.fill_(std::numeric_limits<double>::quiet_NaN());
  const at::Tensor embedding = model.parameters().find(kEmbeddingSite, "token_embedding")->tensor;
  const at::Tensor before = embedding.detach().cpu();
  Optimizer optimizer(model, {});
  TrainingStep step(model, optimizer, {});
  step.forward_backward(plain_batch(3));
  EXPECT_THROW(step.update(1e-3), Diverged);
  EXPECT_TRUE(embedding.detach().cpu().equal(before));
  EXPECT_FALSE(are_weights_finite(model));
}

}  // namespace
}  // namespace attnres::testing::device_training_test
