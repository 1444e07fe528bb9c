#include "attnres/infer/engine.h"

#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "attnres/infer/inference_model.h"
#include "attnres/support/error.h"
#include "tests/infer/engine_outcomes.h"
#include "tests/model/kinds_of_models.h"
#include "tests/text/test_files.h"

namespace attnres::testing::engine_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class AnyModel : public ::testing::TestWithParam<KindOfModel> {
 protected:
  const at::NoGradGuard no_grad_;
  const Transformer model_ = GetParam().make();
  const LocalModel local_{model_};
};

INSTANTIATE_TEST_SUITE_P(Models, AnyModel, ::testing::ValuesIn(every_kind_of_model()),
                         [](const auto& info) { return info.param.name; });

// Prompts of many lengths, in pieces, that come while others are being continued; two go on from
// what the engine has of others, one of them in the middle of a piece.
TEST_P(AnyModel, SequencesAreWhatTheyAreAlone) {
  Engine engine(local_, {.context = 64, .sequences = 3, .step_tokens = 7});
  std::vector<GenerationRequest> requests = {
      request_of(some_ids(25, 1), 6), request_of(some_ids(3, 2), 12, 5),
      request_of(some_ids(1, 3), 3), request_of(some_ids(30, 4), 1)};
  for (GenerationRequest& request : requests) request.settings.prompt_logprobs = 0;
  requests[2].settings.prompt_logprobs = -1;  // one token has none
  Outcomes outcomes;
  for (const GenerationRequest& request : requests) {
    engine.submit(request);
    take_step(engine, outcomes);
  }
  outcomes = finish(engine, outcomes);
  // The whole first sequence and more; and its beginning only.
  std::vector<int32_t> longer = requests[0].prompt, shorter = requests[0].prompt;
  longer.insert(longer.end(), outcomes[0].tokens.begin(), outcomes[0].tokens.end());
  for (const int32_t id : {7, 8, 9}) longer.push_back(id);
  shorter.resize(20);
  for (const int32_t id : {7, 8, 9}) shorter.push_back(id);
  for (const auto& prompt : {longer, shorter}) requests.push_back(request_of(prompt, 4));
  engine.submit(requests[4]);
  engine.submit(requests[5]);
  outcomes = finish(engine, outcomes);
  EXPECT_EQ(outcomes[4].shared, 30);  // the last token was chosen and not computed
  EXPECT_LE(outcomes[5].shared, 20);
  ASSERT_EQ(outcomes.size(), requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(outcomes[i].error, "");
    EXPECT_EQ(outcomes[i].stopped, StopReason::max_tokens);
    EXPECT_EQ(std::ssize(outcomes[i].tokens), requests[i].settings.max_tokens);
    EXPECT_LT(error_of(model_, requests[i].prompt, outcomes[i]), 1e-8) << "request " << i;
  }
  // Negative control: a position off by one.
  std::vector<int32_t> shifted = requests[0].prompt;
  shifted.insert(shifted.begin(), 0);
  EXPECT_GT(error_of(model_, shifted, outcomes[0]), 1e-3);
}

// A request that fails, or whose client leaves, leaves nothing behind that others begin with.
TEST_P(AnyModel, NumbersThatAreNotFiniteStayTheirRequests) {
  model_.parameters().all()[0].tensor[17].fill_(std::numeric_limits<double>::infinity());
  Engine engine(local_, {.context = 100, .sequences = 3, .step_tokens = 8});
  const auto without_17 = [](std::vector<int32_t> ids) {
    std::replace(ids.begin(), ids.end(), 17, 18);
    return ids;
  };
  const auto begun_as = [&](int64_t prompt, std::vector<int32_t> rest) {
    std::vector<int32_t> ids = without_17(some_ids(44, prompt));
    ids.insert(ids.end(), rest.begin(), rest.end());
    return ids;
  };
  const std::vector<int32_t> bad_end(20, 17);
  const auto follower_of = [&](int64_t prompt) {
    GenerationRequest request = request_of(begun_as(prompt, {5, 6, 7}), 6);
    request.settings.sampling.logit_bias = {{17, -100.0}};
    return request;
  };
  Outcomes outcomes;
  const auto submit_and_read = [&](int64_t prompt) {
    const int64_t number = engine.submit(request_of(begun_as(prompt, bad_end), 4));
    for (int pieces = 0; pieces < 7; ++pieces) take_step(engine, outcomes);  // 56 tokens of 64
    return number;
  };
  // One fails; the client of another leaves when it has read such tokens; and one is begun as while
  // it is read.
  submit_and_read(1);
  finish(engine);
  engine.cancel(submit_and_read(2));
  submit_and_read(3);
  for (const int64_t prompt : {3, 1, 2}) {
    const GenerationRequest request = follower_of(prompt);
    const int64_t number = engine.submit(request);
    const Outcome outcome = finish(engine)[number];
    EXPECT_EQ(outcome.error, "") << prompt;
    EXPECT_EQ(outcome.stopped, StopReason::max_tokens);
    EXPECT_LT(error_of(model_, request.prompt, outcome), 1e-8);
  }
}

class OneModel : public ::testing::Test {
 protected:
  const at::NoGradGuard no_grad_;
  const Transformer model_ = small_model(block_attn_res(), {.precision = at::kFloat});
  const LocalModel local_{model_};
};

TEST_F(OneModel, GoesOnFromWhatAnotherSequenceBeganWith) {
  Engine engine(local_, {.context = 100, .sequences = 2});
  const std::vector<int32_t> prompt = some_ids(60, 1);
  engine.submit(request_of(prompt, 5));
  EXPECT_EQ(finish(engine)[0].shared, 0);
  engine.submit(request_of(prompt, 5));
  const Outcome again = finish(engine)[1];
  EXPECT_EQ(again.shared, 59);
  EXPECT_LT(error_of(model_, prompt, again), 1e-4);
  EXPECT_EQ(engine.counts().prompt_tokens, 61);
  EXPECT_EQ(engine.counts().shared_tokens, 59);
  EXPECT_EQ(engine.counts().generated_tokens, 10);
  // Negative control: log-probabilities of another continuation.
  std::vector<int32_t> other = prompt;
  other[58] = (other[58] + 1) % kSmallVocabulary;
  EXPECT_GT(error_of(model_, other, again), 1e-2);
}

TEST_F(OneModel, ReadsAPromptOnceThatTwoRequestsHaveAtOnce) {
  Engine engine(local_, {.context = 100, .sequences = 2, .step_tokens = 16});
  const std::vector<int32_t> prompt = some_ids(60, 1);
  for (const uint64_t seed : {1, 2}) engine.submit(request_of(prompt, 5, seed));
  const Outcomes outcomes = finish(engine);
  EXPECT_EQ(outcomes.at(1).shared, 59);
  EXPECT_NE(outcomes.at(0).tokens, outcomes.at(1).tokens);
}

// In float64, in which another order of sums does not show.
TEST(EngineOfManyRequests, SharesAPoolTooSmallForAll) {
  const at::NoGradGuard no_grad;
  const Transformer model = small_model(block_attn_res());
  const LocalModel local(model);
  Engine engine(local, {.context = 100, .sequences = 4, .tokens = 130});
  std::vector<std::vector<int32_t>> prompts;
  for (int i = 0; i < 12; ++i) {
    prompts.push_back(some_ids(20 + 5 * i, i % 5));
    engine.submit(request_of(prompts[i], 20, i));
  }
  EXPECT_EQ(engine.counts().queued, 12);
  const Outcomes outcomes = finish(engine);
  for (int i = 0; i < 12; ++i) {
    EXPECT_EQ(outcomes.at(i).stopped, StopReason::max_tokens);
    EXPECT_LT(error_of(model, prompts[i], outcomes.at(i)), 1e-8) << "request " << i;
  }
}

// Alone, beside others, after others: the same bits.
TEST_F(OneModel, DeterministicSequencesDependOnNothingElse) {
  const auto logprobs = [&](bool deterministic, int others) {
    Engine engine(
        local_,
        {.context = 100, .sequences = 6, .step_tokens = 24, .deterministic = deterministic});
    for (int i = 0; i < others; ++i) engine.submit(request_of(some_ids(30 + i, 10 + i), 9, i));
    const int64_t watched = engine.submit(request_of(some_ids(50, 1), 8));
    for (int i = 0; i < others; ++i) engine.submit(request_of(some_ids(50, 1), 3 + i, i));
    return chosen(finish(engine).at(watched).logprobs);
  };
  const std::vector<double> alone = logprobs(true, 0);
  ASSERT_EQ(alone.size(), 8u);
  EXPECT_EQ(logprobs(true, 1), alone);
  EXPECT_EQ(logprobs(true, 4), alone);
  EXPECT_NE(logprobs(false, 4), alone);  // negative control: rounding does differ
}

TEST_F(OneModel, ALongPromptDoesNotHoldUpOthers) {
  Engine engine(local_, {.context = 400, .sequences = 3, .step_tokens = 16});
  engine.submit(request_of(some_ids(2, 1), 50));
  Outcomes outcomes;
  take_step(engine, outcomes);
  engine.submit(request_of(some_ids(300, 2), 1));
  engine.submit(request_of(some_ids(6, 3), 50));
  take_step(engine, outcomes);
  EXPECT_EQ(outcomes[0].tokens.size(), 2u);
  EXPECT_EQ(outcomes[2].tokens.size(), 1u);
  EXPECT_FALSE(outcomes.contains(1));
}

TEST_F(OneModel, CancelledRequestsLeave) {
  Engine engine(local_, {.context = 50, .sequences = 1});
  const int64_t running = engine.submit(request_of(some_ids(20, 1), 20));
  const int64_t queued = engine.submit(request_of(some_ids(20, 2), 20));
  const int64_t last = engine.submit(request_of(some_ids(20, 3), 2));
  engine.step();
  EXPECT_TRUE(engine.cancel(running));
  EXPECT_FALSE(engine.cancel(running));
  EXPECT_TRUE(engine.cancel(queued));
  const Outcomes outcomes = finish(engine);
  EXPECT_EQ(outcomes.size(), 1u);
  EXPECT_EQ(outcomes.at(last).stopped, StopReason::max_tokens);
  EXPECT_FALSE(engine.cancel(99));
}

TEST_F(OneModel, EndsWhereTheContextIsFull) {
  Engine engine(local_, {.context = 10});
  engine.submit(request_of(some_ids(7, 1), 5));
  const Outcome outcome = finish(engine)[0];
  EXPECT_EQ(outcome.stopped, StopReason::context);
  EXPECT_EQ(outcome.tokens.size(), 3u);
}

TEST_F(OneModel, ScoresAPromptThatFillsTheContext) {
  Engine engine(local_, {.context = 40, .step_tokens = 16});
  const std::vector<int32_t> prompt = some_ids(40, 1);
  engine.submit({prompt, {.max_tokens = 0, .prompt_logprobs = 2}});
  const Outcome outcome = finish(engine)[0];
  EXPECT_EQ(outcome.stopped, StopReason::max_tokens);
  EXPECT_TRUE(outcome.tokens.empty());
  ASSERT_EQ(outcome.prompt_logprobs.size(), 39u);
  EXPECT_EQ(outcome.prompt_logprobs[0].top.size(), 2u);
  EXPECT_LT(error_of(model_, prompt, outcome), 1e-4);
}

TEST_F(OneModel, RefusesRequestsThatCannotBe) {
  Engine engine(local_, {.context = 10});
  const auto refusal = [&](const GenerationRequest& request) {
    return message_of<Error>([&] { engine.submit(request); });
  };
  EXPECT_THAT(refusal({}), HasSubstr("the prompt has no tokens"));
  EXPECT_THAT(refusal({{1, 50}}), HasSubstr("token id 50"));
  EXPECT_THAT(refusal({some_ids(10, 1)}), AllOf(HasSubstr("10 tokens"), HasSubstr("shorten")));
  EXPECT_THAT(refusal({{1}, {.sampling = {.top_p = 2}}}), HasSubstr("top-p"));
  EXPECT_THAT(refusal({{1}, {.max_tokens = -1}}), HasSubstr("max_tokens"));
  EXPECT_TRUE(engine.idle());
}

TEST_F(OneModel, RefusesSettingsThatMakeNoSense) {
  const auto refusal = [&](const EngineSettings& settings) {
    return message_of<Error>([&] { const Engine engine(local_, settings); });
  };
  EXPECT_THAT(refusal({.context = 1}), HasSubstr("context: expected 2"));
  EXPECT_THAT(refusal({.context = 9, .sequences = 0}), HasSubstr("sequences: expected 1"));
  EXPECT_THAT(refusal({.context = 9, .step_tokens = 7}), HasSubstr("step_tokens: expected"));
  EXPECT_THAT(refusal({.context = 9, .tokens = 8}), HasSubstr("tokens: expected"));
}

TEST_F(OneModel, SaysWhichContextFitsIntoMemory) {
  const std::string refusal = message_of<Error>(
      [&] { const Engine engine(local_, {.context = int64_t{1} << 42, .sequences = 2}); });
  EXPECT_THAT(refusal, AllOf(HasSubstr("of memory"), HasSubstr("room for a context of")));
  const int64_t fits = std::stoll(refusal.substr(refusal.rfind(' ') + 1));
  EXPECT_GT(fits, 1000000);
}

// One request's numbers that are not finite end that request only.
TEST(EngineFailures, EndOneRequest) {
  const at::NoGradGuard no_grad;
  const Transformer model = small_model(residual(), {.precision = at::kFloat});
  // The embedding of one token is not a number.
  model.parameters().all()[0].tensor[17].fill_(std::numeric_limits<double>::quiet_NaN());
  const LocalModel local(model);
  Engine engine(local, {.context = 60});
  const auto without_17 = [](std::vector<int32_t> ids) {
    std::replace(ids.begin(), ids.end(), 17, 18);
    return ids;
  };
  GenerationRequest good = request_of(without_17(some_ids(20, 1)), 6);
  good.settings.sampling.logit_bias = {{17, -100.0}};
  engine.submit(good);
  engine.submit(request_of({17, 3}, 6));
  GenerationRequest scored = request_of({3, 17, 4}, 6);
  scored.settings.prompt_logprobs = 0;
  engine.submit(scored);
  const Outcomes outcomes = finish(engine);
  for (const int bad : {1, 2}) {
    EXPECT_EQ(outcomes.at(bad).stopped, StopReason::failed);
    EXPECT_THAT(outcomes.at(bad).error, HasSubstr("not finite"));
  }
  EXPECT_EQ(outcomes.at(0).stopped, StopReason::max_tokens);
  EXPECT_EQ(outcomes.at(0).tokens.size(), 6u);
  EXPECT_EQ(engine.counts().held, 1);
}

// What is only read, for its mean or its depth weights, fails too.
TEST(EngineFailures, EndRequestsThatGenerateNothing) {
  const at::NoGradGuard no_grad;
  const Transformer model = small_model(block_attn_res(), {.precision = at::kFloat});
  model.parameters().all()[0].tensor[17].fill_(std::numeric_limits<double>::infinity());
  const LocalModel local(model);
  Engine engine(local, {.context = 60});
  for (const bool depth : {false, true}) {
    GenerationRequest request = request_of({3, 17, 4}, 0);
    request.settings.mean_hidden = !depth;
    request.settings.depth_weights = depth;
    const int64_t number = engine.submit(request);
    const Outcome outcome = finish(engine)[number];
    EXPECT_EQ(outcome.stopped, StopReason::failed);
    EXPECT_THAT(outcome.error, HasSubstr("not finite"));
  }
  EXPECT_EQ(engine.counts().held, 0);
}

}  // namespace
}  // namespace attnres::testing::engine_test
