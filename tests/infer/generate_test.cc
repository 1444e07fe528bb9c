#include "attnres/infer/generate.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>

#include "attnres/infer/inference_model.h"
#include "attnres/infer/score.h"
#include "attnres/support/error.h"
#include "tests/model/small_models.h"
#include "tests/text/test_files.h"
#include "tests/tolerances.h"

namespace attnres::testing::generate_test {
namespace {

using ::testing::HasSubstr;

// [B, T, V], of whole sequences.
at::Tensor logits_of(const Transformer& model, const at::Tensor& ids_BT) {
  return model.logits(model.hidden(ids_BT));
}

class Generating : public ::testing::Test {
 protected:
  Generating() { settings_.max_tokens = 20; }
  Generation run() const { return generate(local_, prompt_, context_, settings_); }

  const Transformer model_ = small_model(block_attn_res(), {.precision = at::kFloat});
  const LocalModel local_{model_};
  const std::vector<int32_t> prompt_ = {1, 2, 3};
  int64_t context_ = 64;
  GenerationSettings settings_;
};

TEST_F(Generating, GreedilyFollowsTheFullModel) {
  const at::NoGradGuard no_grad;
  settings_.sampling.temperature = 0;
  std::vector<int32_t> streamed;
  const Generation generation = generate(local_, prompt_, context_, settings_, [&](int32_t token) {
    streamed.push_back(token);
    return true;
  });
  EXPECT_EQ(generation.reason, StopReason::max_tokens);
  EXPECT_EQ(streamed, generation.tokens);
  ASSERT_EQ(generation.tokens.size(), 20u);
  std::vector<int32_t> sequence = prompt_;
  for (const int32_t token : generation.tokens) {
    const std::vector<int64_t> ids(sequence.begin(), sequence.end());
    const at::Tensor logits_V = logits_of(model_, at::tensor(ids).unsqueeze(0))[0][-1];
    EXPECT_GT(logits_V.std().item<double>(), 1);
    EXPECT_EQ(token, logits_V.argmax().item<int64_t>());
    sequence.push_back(token);
  }
}

TEST_F(Generating, IsDecidedByTheSeed) {
  const auto tokens = run().tokens;
  EXPECT_EQ(run().tokens, tokens);
  settings_.sampling.seed = 2;
  EXPECT_NE(run().tokens, tokens);
}

TEST_F(Generating, StopsBeforeTheEndOfDocument) {
  const auto all = run().tokens;
  settings_.ends = {all[7]};
  const Generation stopped = run();
  EXPECT_EQ(stopped.reason, StopReason::end_of_document);
  const auto end = std::find(all.begin(), all.end(), all[7]);
  EXPECT_EQ(stopped.tokens, std::vector<int32_t>(all.begin(), end));
}

TEST_F(Generating, StopsBeforeAnyOfSeveralEnds) {
  const auto all = run().tokens;
  settings_.ends = {kSmallVocabulary, all[5], all[2]};
  const auto first = std::find_if(all.begin(), all.end(),
                                  [&](int32_t id) { return id == all[5] || id == all[2]; });
  EXPECT_EQ(run().tokens, std::vector<int32_t>(all.begin(), first));
}

TEST_F(Generating, TakesTokensOfASmallerVocabularyOnly) {
  const auto all = run().tokens;
  const int32_t largest = *std::max_element(all.begin(), all.end());
  settings_.vocabulary = largest;
  const auto smaller = run().tokens;
  EXPECT_LT(*std::max_element(smaller.begin(), smaller.end()), largest);
  settings_.vocabulary = kSmallVocabulary + 5;  // more than the model's: all of them
  EXPECT_EQ(run().tokens, all);
}

TEST_F(Generating, RefusesTokensThatTheModelLacks) {
  for (const int32_t id : {-1, static_cast<int32_t>(kSmallVocabulary)}) {
    EXPECT_THAT(message_of<Error>([&] {
                  generate(local_, {1, id}, context_, settings_);
                }),
                HasSubstr("token id " + std::to_string(id)));
  }
}

TEST_F(Generating, StopsWhereTheContextIsFull) {
  context_ = 8;
  const Generation generation = run();
  EXPECT_EQ(generation.reason, StopReason::context);
  EXPECT_EQ(generation.tokens.size(), 5u);
}

TEST_F(Generating, NoTokensAskedForGivesNone) {
  settings_.max_tokens = 0;
  EXPECT_TRUE(run().tokens.empty());
}

TEST_F(Generating, StopsAfterTheTokenThatIsEnough) {
  const auto all = run().tokens;
  std::vector<int32_t> seen;
  const Generation stopped = generate(local_, prompt_, context_, settings_, [&](int32_t token) {
    seen.push_back(token);
    return seen.size() < 4;
  });
  EXPECT_EQ(stopped.reason, StopReason::stop_string);
  EXPECT_EQ(stopped.tokens, std::vector<int32_t>(all.begin(), all.begin() + 4));
  EXPECT_EQ(seen, stopped.tokens);
}

// Every token is the likeliest after penalties that count the prompt and the tokens before it.
TEST_F(Generating, CountsItsTokens) {
  const at::NoGradGuard no_grad;
  settings_.sampling = {.repetition_penalty = 1.3, .frequency_penalty = 1.5, .temperature = 0};
  std::vector<int32_t> sequence = prompt_;
  TokenCounts counts;
  counts.add_prompt(prompt_);
  int64_t differing = 0;
  for (const int32_t token : run().tokens) {
    const std::vector<int64_t> ids(sequence.begin(), sequence.end());
    const at::Tensor logits_V = logits_of(model_, at::tensor(ids).unsqueeze(0))[0][-1];
    EXPECT_EQ(token, sample_token(logits_V, settings_.sampling, counts, 0));
    differing += token != sample_token(logits_V, settings_.sampling, {}, 0);
    counts.add_generated(token);
    sequence.push_back(token);
  }
  EXPECT_GT(differing, 0);
}

TEST_F(Generating, GivesTheModelsLogProbabilities) {
  EXPECT_TRUE(run().logprobs.empty());
  settings_.sampling.temperature = 2;
  settings_.top_logprobs = 3;
  const Generation generation = run();
  std::vector<int32_t> sequence = prompt_;
  sequence.insert(sequence.end(), generation.tokens.begin(), generation.tokens.end());
  const std::vector<double> scores = score_sequence(local_, sequence, context_);
  ASSERT_EQ(generation.logprobs.size(), generation.tokens.size());
  for (size_t i = 0; i < generation.tokens.size(); ++i) {
    const TokenLogprobs& logprobs = generation.logprobs[i];
    EXPECT_NEAR(logprobs.chosen, scores[prompt_.size() - 1 + i], 1e-4);
    ASSERT_EQ(logprobs.top.size(), 3u);
    EXPECT_GE(logprobs.top[0].logprob, logprobs.chosen);
  }
}

TEST_F(Generating, RefusesABiasOfATokenThatCannotCome) {
  settings_.sampling.logit_bias = {{kSmallVocabulary - 1, 1.0}};
  EXPECT_NO_THROW(run());
  settings_.vocabulary = kSmallVocabulary - 1;
  EXPECT_THAT(message_of<UsageError>([&] { run(); }), HasSubstr("logit-bias: token id"));
}

TEST_F(Generating, NeverCutsThePrompt) {
  context_ = 3;
  try {
    run();
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("3 tokens"));
  }
  context_ = 64;
  EXPECT_THROW(generate(local_, {}, context_, settings_), Error);
  EXPECT_THROW(generate(local_, {50}, context_, settings_), Error);
}

}  // namespace
}  // namespace attnres::testing::generate_test
