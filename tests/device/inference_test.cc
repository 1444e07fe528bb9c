// Evaluation, decoding and the engine on a device that is not the CPU.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>

#include <map>
#include <optional>
#include <string>

#include "attnres/infer/engine.h"
#include "attnres/infer/evaluate.h"
#include "attnres/infer/score.h"
#include "attnres/ops/packed_weight/packed_weight.h"
#include "attnres/text/bytes.h"
#include "tests/device/device_models.h"
#include "tests/tolerances.h"

namespace attnres::testing::device_inference_test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::ThrowsMessage;

constexpr double kTolerance = 1e-9;

class DeviceInferenceOf : public ::testing::TestWithParam<KindOfModel> {
 protected:
  const at::NoGradGuard no_grad_;
  const Transformer here_ = GetParam().make(), there_ = on_pretend_device(here_);
};

INSTANTIATE_TEST_SUITE_P(Kinds, DeviceInferenceOf, ::testing::ValuesIn(every_kind_of_model()),
                         [](const auto& info) { return info.param.name; });

TEST_P(DeviceInferenceOf, PredictsAsOnTheCpu) {
  const at::Tensor ids_BT = random_ids(2, 9), targets_BT = random_ids(2, 9, 5);
  const at::Tensor expected = here_.log_probabilities(ids_BT, targets_BT);
  EXPECT_TRUE(close(there_.log_probabilities(ids_BT, targets_BT).cpu(), expected, kTolerance));
}

// A prompt in pieces beside single tokens of another, a fork, and a sequence that is taken back.
TEST_P(DeviceInferenceOf, DecodesAsOnTheCpu) {
  const at::Tensor ids_BT = random_ids(2, 12);
  const auto decode = [&](const Transformer& model) {
    const auto pool = model.make_pool({.sequences = 4, .tokens = 64, .page_tokens = 4});
    const int64_t a = pool->add(), b = pool->add();
    std::vector<at::Tensor> hidden;
    const auto go_on = [&](const std::vector<Continuation>& more) {
      std::vector<at::Tensor> ids;
      for (const Continuation& one : more) {
        ids.push_back(ids_BT[one.sequence == b].narrow(0, pool->length(one.sequence), one.tokens));
      }
      hidden.push_back(model.hidden(at::cat(ids), pool->append(more)).cpu());
    };
    go_on({{a, 5}, {b, 1}});
    go_on({{b, 3}, {a, 4, {7}}});
    pool->snapshot(a);
    const int64_t fork = pool->fork(a);
    go_on({{a, 1}, {b, 1}, {fork, 2}});
    pool->truncate(a, 9);
    go_on({{b, 1}, {a, 2}});
    pool->truncate(a, 8);
    go_on({{a, 3}});
    return at::cat(hidden);
  };
  EXPECT_TRUE(close(decode(there_), decode(here_), kTolerance));
}

struct Outcome {
  std::vector<int32_t> tokens = {};
  std::vector<double> logprobs = {};
  std::vector<float> mean_hidden = {}, depth_weights = {};
  int64_t shared = 0;
  std::string error = {};
};

void take_over(const RequestUpdate& update, Outcome& outcome) {
  if (update.token) outcome.tokens.push_back(*update.token);
  for (const TokenLogprobs& of_token : update.prompt_logprobs) {
    outcome.logprobs.push_back(of_token.chosen);
  }
  if (update.logprobs) outcome.logprobs.push_back(update.logprobs->chosen);
  if (!update.mean_hidden.empty()) outcome.mean_hidden = update.mean_hidden;
  for (const auto& of_token : update.depth.weights) {
    for (const auto& of_site : of_token) {
      outcome.depth_weights.insert(outcome.depth_weights.end(), of_site.begin(), of_site.end());
    }
  }
  outcome.shared = update.shared_tokens;
  outcome.error = update.error;
}

// Requests that join one after another, of which the last begins as the first does.
std::map<int64_t, Outcome> serve(const Transformer& model) {
  const LocalModel local(model);
  Engine engine(local, {.context = 48, .sequences = 3, .step_tokens = 7});
  const auto prompt = [](int64_t count, uint64_t seed) {
    return as_vector(random_ids(1, count, seed));
  };
  const GenerationSettings plain = {.max_tokens = 3, .top_logprobs = 0};
  GenerationSettings all = plain;
  all.prompt_logprobs = 0;
  all.depth_weights = all.mean_hidden = true;
  std::vector<GenerationRequest> requests = {
      {prompt(20, 1), plain}, {prompt(5, 2), all}, {prompt(1, 3), plain}, {prompt(20, 1), plain}};
  std::map<int64_t, Outcome> outcomes;
  const auto step = [&] {
    for (const RequestUpdate& update : engine.step()) take_over(update, outcomes[update.request]);
  };
  for (GenerationRequest& request : requests) {
    engine.submit(std::move(request));
    step();
  }
  for (int steps = 0; !engine.idle() && steps < 100; ++steps) step();
  EXPECT_TRUE(engine.idle());
  return outcomes;
}

template <class Number>
void expect_near(const std::vector<Number>& got, const std::vector<Number>& expected,
                 double tolerance) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], tolerance);
}

void expect_served_alike(const Transformer& there, const Transformer& here, double tolerance) {
  const auto expected = serve(here), got = serve(there);
  ASSERT_EQ(got.size(), expected.size());
  for (const auto& [request, outcome] : got) {
    const Outcome& wanted = expected.at(request);
    EXPECT_EQ(outcome.error, "");
    EXPECT_EQ(outcome.tokens, wanted.tokens) << request;
    EXPECT_EQ(outcome.shared, wanted.shared) << request;
    expect_near(outcome.logprobs, wanted.logprobs, tolerance);
    expect_near(outcome.mean_hidden, wanted.mean_hidden, 1e-5);
    expect_near(outcome.depth_weights, wanted.depth_weights, 1e-5);
  }
}

TEST_P(DeviceInferenceOf, ServesAsOnTheCpu) {
  expect_served_alike(there_, here_, 1e-8);
}

TEST(DeviceInference, EvaluatesAsOnTheCpu) {
  const Transformer here = small_model(block_attn_res(), {.vocab_size = 256}),
                    there = on_pretend_device(here);
  const auto loss = [](const Transformer& model) {
    return evaluate(LocalModel(model), ByteTokenizer(), {as_vector(random_ids(1, 40))},
                    {.context = 16})
        .loss;
  };
  EXPECT_NEAR(loss(there), loss(here), kTolerance);
  const auto scores = [](const Transformer& model) {
    return score_sequence(LocalModel(model), as_vector(random_ids(1, 12)), 16);
  };
  expect_near(scores(there), scores(here), kTolerance);
}

// A model whose weights are packed: embedding, head, maps and stacks of experts.
Transformer packed(const ModelConfig& config, WeightFormat format) {
  const at::NoGradGuard not_recording;
  const Transformer numbers(config, kSmallVocabulary, /*seed=*/1);
  Transformer model(config, kSmallVocabulary, /*seed=*/std::nullopt,
                    {at::kFloat, at::kFloat, format});
  for (size_t i = 0; i < numbers.parameters().all().size(); ++i) {
    const Parameter& to = model.parameters().all()[i];
    const at::Tensor values = numbers.parameters().all()[i].tensor.detach();
    if (to.packed.defined()) {
      pack_weight(values, to.packed);
    } else {
      at::Tensor(to.tensor).copy_(values);
    }
  }
  return model;
}

// The same with the numbers that these weights stand for.
Transformer unpacked(const Transformer& packed) {
  Transformer model(packed.config(), kSmallVocabulary, /*seed=*/std::nullopt);
  for (size_t i = 0; i < packed.parameters().all().size(); ++i) {
    const Parameter& from = packed.parameters().all()[i];
    at::Tensor(model.parameters().all()[i].tensor)
        .copy_(from.packed.defined() ? unpack_weight(from.packed) : from.tensor);
  }
  return model;
}

// As with the numbers that they stand for. The CPU itself rounds x too where weights are in blocks,
// to int8 numbers (packed_weight/kernel.h), which moves log-probabilities here by up to 3.
TEST(DeviceInference, ServesPackedWeights) {
  const at::NoGradGuard no_grad;
  for (const WeightFormat format :
       {WeightFormat::f16, WeightFormat::bf16, WeightFormat::q8_0, WeightFormat::q4_0}) {
    for (const ModelConfig& config :
         {small_config(block_attn_res()), kimi_config(/*k3=*/true, block_attn_res())}) {
      const Transformer here = packed(config, format), there = on_pretend_device(here);
      for (const Parameter& p : there.parameters().all()) {
        if (p.packed.defined()) {
          EXPECT_EQ(p.packed.bytes.device(), pretend_device());
        }
      }
      expect_served_alike(there, unpacked(here), 1e-4);
      if (!has_blocks(format)) expect_served_alike(there, here, 1e-4);
    }
  }
}

TEST(DeviceInference, KeepsWhatItReadsOnTheDevice) {
  const Transformer model = on_pretend_device(relative_model(block_attn_res()));
  const auto pool = model.make_pool({.sequences = 1, .tokens = 16});
  EXPECT_EQ(pool->store().device(), pretend_device());
}

// The pool has what is free; what is too much for it is said, and what runs out in a step.
TEST(DeviceInference, KnowsTheDevicesMemory) {
  const at::NoGradGuard no_grad;
  const Transformer model = on_pretend_device(small_model(block_attn_res()));
  const LocalModel local(model);
  const int64_t least = pool_bytes(model.kept(), {.sequences = 2, .tokens = 48});
  const EngineSettings settings = {
      .context = 48, .sequences = 2, .step_tokens = 7, .share_prefixes = false};
  {
    const LimitedMemory limited(pretend_bytes() + least);  // all of it would leave none for steps
    EXPECT_THAT([&] { Engine(local, settings); },
                ThrowsMessage<Error>(HasSubstr("are free on pretend:0 (Pretend); there is room")));
    EXPECT_LT(local.count_tokens({.sequences = 2, .tokens = 96}).tokens, 48);
  }
  std::optional<LimitedMemory> limited(std::in_place, pretend_bytes() + 100 * least);
  Engine engine(local, settings);
  const int64_t request =
      engine.submit({as_vector(random_ids(1, 5)), {.max_tokens = 3, .top_logprobs = 0}});
  limited.emplace(pretend_bytes());
  std::string error;
  for (const RequestUpdate& update : engine.step()) {
    if (update.request == request) error = update.error;
  }
  EXPECT_THAT(error, StartsWith("memory ran out on pretend:0 (Pretend): "));
}

// A token that is decoded is read once, its logits: nothing else waits for the device.
TEST(DeviceInference, ReadsTheLogitsAlone) {
  const at::NoGradGuard no_grad;
  const Transformer model = on_pretend_device(small_model(block_attn_res()));
  const auto pool = model.make_pool({.sequences = 1, .tokens = 16});
  const int64_t sequence = pool->add();
  const HostReads reads;
  model.logits(model.hidden(random_ids(1, 5).flatten(), pool->append({{sequence, 5}})));
  model.logits(model.hidden(random_ids(1, 1).flatten(), pool->append({{sequence, 1}})));
  EXPECT_THAT(reads.list(), ::testing::IsEmpty());
}

}  // namespace
}  // namespace attnres::testing::device_inference_test
