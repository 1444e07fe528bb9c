#include "attnres/infer/evaluate.h"

#include <gmock/gmock.h>

#include <cmath>
#include <numbers>
#include <numeric>

#include "attnres/infer/inference_model.h"
#include "attnres/infer/score.h"
#include "attnres/support/error.h"
#include "attnres/text/bytes.h"
#include "tests/model/small_models.h"
#include "tests/text/test_files.h"

namespace attnres::testing::evaluate_test {
namespace {

// 256 windows of 10 fill more than one batch, and a short window of 7 remains.
constexpr int64_t kContext = 10;

class Evaluating : public ::testing::Test {
 protected:
  // The sum of the log-probabilities of windows scored one by one.
  double nats(int64_t tokens) const {
    double sum = 0;
    for (int64_t start = 0; start + 1 < tokens; start += kContext) {
      const auto end = tokens_.begin() + std::min(start + kContext, tokens);
      const auto scores = score_sequence(local_, {tokens_.begin() + start, end}, kContext);
      sum -= std::accumulate(scores.begin(), scores.end(), 0.0);
    }
    return sum;
  }

  const Transformer model_ = small_model(attn_res(), {.vocab_size = 256});
  const LocalModel local_{model_};
  const std::vector<int32_t> tokens_ = as_vector(random_ids(1, 4217, 5, 256));
  const ByteTokenizer tokenizer_{};
};

TEST_F(Evaluating, IsTheMeanOverWindowsScoredOneByOne) {
  int64_t last_done = -1, last_total = 0;
  const Evaluation evaluation =
      evaluate(local_, tokenizer_, {tokens_},
               {.context = kContext, .on_progress = [&](int64_t done, int64_t total) {
                  EXPECT_GT(done, last_done);
                  last_done = done;
                  last_total = total;
                }});
  EXPECT_EQ(evaluation.tokens, 421 * 9 + 6);
  EXPECT_EQ(last_done, evaluation.tokens);
  EXPECT_EQ(last_total, evaluation.tokens);
  const double loss = nats(4217) / static_cast<double>(evaluation.tokens);
  EXPECT_NEAR(evaluation.loss, loss, 1e-10);
  EXPECT_NEAR(evaluation.perplexity, std::exp(loss), 1e-8 * std::exp(loss));
  EXPECT_NEAR(evaluation.bits_per_byte, loss / std::numbers::ln2, 1e-10);
}

TEST_F(Evaluating, ALimitTakesTheFirstWholeWindows) {
  const Evaluation evaluation =
      evaluate(local_, tokenizer_, {tokens_}, {.context = kContext, .max_tokens = 39});
  EXPECT_EQ(evaluation.tokens, 27);
  EXPECT_NEAR(evaluation.loss, nats(30) / 27, 1e-10);
  EXPECT_EQ(evaluate(local_, tokenizer_, {tokens_}, {.context = kContext, .max_tokens = 1}).tokens,
            9);
  EXPECT_EQ(
      evaluate(local_, tokenizer_, {tokens_}, {.context = kContext, .max_tokens = 1 << 20}).tokens,
      421 * 9 + 6);
}

// Answers only, as of conversations: their log-probabilities among those of windows scored whole.
TEST_F(Evaluating, CountsWhatCounts) {
  EvaluationTokens tokens = {tokens_};
  for (size_t t = 0; t < tokens_.size(); ++t) tokens.counts.push_back(t % 50 >= 37);
  double nats = 0, all_nats = 0;
  int64_t count = 0, all = 0;
  for (size_t start = 0; start + 1 < tokens_.size(); start += kContext) {
    const size_t end = std::min(start + kContext, tokens_.size());
    const auto scores =
        score_sequence(local_, {tokens_.begin() + start, tokens_.begin() + end}, kContext);
    for (size_t t = start + 1; t < end; ++t) {
      all_nats -= scores[t - start - 1];
      ++all;
      if (t % 50 < 37) continue;
      nats -= scores[t - start - 1];
      ++count;
    }
  }
  const Evaluation evaluation = evaluate(local_, tokenizer_, tokens, {.context = kContext});
  EXPECT_EQ(evaluation.tokens, count);
  EXPECT_NEAR(evaluation.loss, nats / static_cast<double>(count), 1e-10);
  EXPECT_NEAR(evaluation.bits_per_byte, evaluation.loss / std::numbers::ln2, 1e-10);
  // Negative control: of all tokens it is another one.
  EXPECT_GT(std::abs(evaluation.loss - all_nats / static_cast<double>(all)), 1e-3);
  tokens.counts.assign(tokens_.size(), false);
  EXPECT_THROW(evaluate(local_, tokenizer_, tokens, {.context = kContext}), Error);
}

TEST_F(Evaluating, RefusesWhatItCannotScore) {
  EXPECT_THROW(evaluate(local_, tokenizer_, {{7}}, {.context = kContext}), Error);
  EXPECT_THROW(evaluate(local_, tokenizer_, {tokens_}, {.context = 1}), Error);
  const auto small = small_model(residual());
  for (const std::vector<int32_t>& ids : {std::vector{1, 200, 3}, std::vector{1, 2, 200}}) {
    EXPECT_THAT(message_of<Error>(
                    [&] { evaluate(LocalModel(small), tokenizer_, {ids}, {.context = kContext}); }),
                ::testing::HasSubstr("token id 200 is out of range"));
  }
}

}  // namespace
}  // namespace attnres::testing::evaluate_test
