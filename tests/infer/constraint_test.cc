// Continuations that are kept to a form.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <set>

#include "attnres/grammar/answer_grammars.h"
#include "attnres/infer/engine.h"
#include "attnres/infer/generate.h"
#include "attnres/support/error.h"
#include "attnres/text/bytes.h"
#include "tests/grammar/plain_schema.h"
#include "tests/model/small_models.h"
#include "tests/text/test_files.h"

namespace attnres::testing::constraint_test {
namespace {

using ::testing::HasSubstr;
using Tokens = std::vector<int32_t>;

// One of some sequences of tokens.
class OneOf : public TokenConstraint {
 public:
  explicit OneOf(std::set<Tokens> sequences) : sequences_(std::move(sequences)) {}

  std::unique_ptr<ConstraintState> start() const override {
    return std::make_unique<State>(sequences_);
  }

 private:
  class State : public ConstraintState {
   public:
    explicit State(std::set<Tokens> sequences) : sequences_(std::move(sequences)) {}

    const AllowedTokens& allowed() override {
      allowed_ = {
          .bits = std::vector<uint32_t>(2), .none = true, .end = sequences_.contains(so_far_)};
      for (const Tokens& tokens : sequences_) {
        if (tokens.size() <= so_far_.size() ||
            !std::equal(so_far_.begin(), so_far_.end(), tokens.begin())) {
          continue;
        }
        const int32_t next = tokens[so_far_.size()];
        require(next >= 0, "nothing may come");
        allowed_.bits[next / 32] |= 1U << (next % 32);
        allowed_.none = false;
      }
      return allowed_;
    }
    void accept(int32_t token) override { so_far_.push_back(token); }

   private:
    const std::set<Tokens> sequences_;
    Tokens so_far_;
    AllowedTokens allowed_;
  };

  const std::set<Tokens> sequences_;
};

class Constrained : public ::testing::Test {
 protected:
  Generation run(std::set<Tokens> sequences, uint64_t seed = 1) {
    settings_.constraint = std::make_shared<const OneOf>(std::move(sequences));
    settings_.sampling.seed = seed;
    return generate(local_, {1, 2, 3}, 64, settings_);
  }

  const Transformer model_ = small_model(block_attn_res(), {.precision = at::kFloat});
  const LocalModel local_{model_};
  GenerationSettings settings_{.max_tokens = 20};
};

TEST_F(Constrained, TakesNothingElse) {
  const std::set<Tokens> sequences = {{4, 5, 6}, {4, 7}, {33, 49, 0, 1}, {8}};
  std::set<Tokens> seen;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const Generation generation = run(sequences, seed);
    EXPECT_TRUE(sequences.contains(generation.tokens));
    // There is no end token: it ends where nothing else may come.
    EXPECT_EQ(generation.reason, StopReason::end_of_document);
    seen.insert(generation.tokens);
  }
  EXPECT_GT(seen.size(), 1u);
  settings_.constraint = nullptr;
  EXPECT_FALSE(sequences.contains(generate(local_, {1, 2, 3}, 64, settings_).tokens));
}

TEST_F(Constrained, EndsOnlyWhereItMay) {
  const std::set<Tokens> sequences = {{4, 5, 6}, {4, 5, 6, 7}};
  settings_.ends = {9, 60};
  settings_.sampling.logit_bias = {{9, 100}};  // whenever it may
  EXPECT_EQ(run(sequences).tokens, (Tokens{4, 5, 6}));
  EXPECT_EQ(run(sequences).reason, StopReason::end_of_document);
  settings_.sampling.logit_bias = {{9, -100}};
  EXPECT_EQ(run(sequences).tokens, (Tokens{4, 5, 6, 7}));
  // A token that ends texts is none of a text.
  settings_.sampling.logit_bias = {};
  settings_.ends = {5};
  EXPECT_THAT(message_of<Error>([&] { run(sequences); }), HasSubstr("no token"));
  EXPECT_EQ(run({{}}).tokens, Tokens{});
  EXPECT_EQ(run({{}}).reason, StopReason::end_of_document);
}

TEST_F(Constrained, EndsAfterTheLeastTokensUnlessItIsComplete) {
  settings_.ends = {9};
  settings_.sampling.logit_bias = {{9, 100}};
  settings_.min_tokens = 4;
  EXPECT_EQ(run({{4}, {4, 5, 6, 7}, {4, 5, 6, 7, 8}}).tokens, (Tokens{4, 5, 6, 7}));
  EXPECT_EQ(run({{4}, {4, 5}}).tokens, (Tokens{4, 5}));
  EXPECT_EQ(run({{4}, {4, 5}}).reason, StopReason::end_of_document);
  settings_.constraint = nullptr;
  EXPECT_EQ(generate(local_, {1, 2, 3}, 64, settings_).tokens.size(), 4u);
  settings_.min_tokens = 21;
  EXPECT_THAT(message_of<Error>([&] {
                generate(local_, {1, 2, 3}, 64, settings_);
              }),
              HasSubstr("min_tokens: expected 0 to max_tokens, which is 20, got 21"));
}

TEST_F(Constrained, StopsAtTheMostTokens) {
  settings_.max_tokens = 2;
  EXPECT_EQ(run({{4, 5, 6}}).tokens, (Tokens{4, 5}));
  EXPECT_EQ(run({{4, 5, 6}}).reason, StopReason::max_tokens);
  EXPECT_EQ(run({{4, 5}}).reason, StopReason::end_of_document);
}

TEST_F(Constrained, LeavesLogProbabilitiesTheModelsOwn) {
  settings_.top_logprobs = kSmallVocabulary;
  const Generation kept = run({{4}});
  ASSERT_EQ(kept.logprobs.size(), 1u);
  double total = 0;
  for (const TokenLogprob& top : kept.logprobs[0].top) total += std::exp(top.logprob);
  EXPECT_NEAR(total, 1, 1e-9);
  EXPECT_LT(kept.logprobs[0].chosen, -0.1);
}

TEST_F(Constrained, FailsAloneWhereNothingMayCome) {
  Engine engine(local_, {.context = 64});
  std::map<int64_t, Tokens> tokens;
  const auto submit = [&](std::shared_ptr<const TokenConstraint> constraint) {
    settings_.constraint = std::move(constraint);
    settings_.max_tokens = 6;
    return engine.submit({{1, 2, 3}, settings_});
  };
  const int64_t bad = submit(std::make_shared<const OneOf>(std::set<Tokens>{{4, 5, -1}}));
  const int64_t free = submit(nullptr);
  const int64_t good = submit(std::make_shared<const OneOf>(std::set<Tokens>{{4, 5, 6, 7}}));
  std::string error;
  while (!engine.idle()) {
    for (const RequestUpdate& update : engine.step()) {
      if (update.token) tokens[update.request].push_back(*update.token);
      if (update.stopped == StopReason::failed) {
        EXPECT_EQ(update.request, bad);
        error = update.error;
      }
    }
  }
  EXPECT_EQ(error, "nothing may come");
  EXPECT_EQ(tokens[good], (Tokens{4, 5, 6, 7}));
  settings_.constraint = nullptr;
  EXPECT_EQ(tokens[free], generate(local_, {1, 2, 3}, 64, settings_).tokens);
}

TEST(ConstrainedJson, MeetsItsSchemaWhateverTheWeights) {
  const ByteTokenizer tokenizer;
  AnswerGrammars grammars(tokenizer);
  const Transformer model =
      small_model(block_attn_res(), {.vocab_size = 300, .precision = at::kFloat});
  const LocalModel local(model);
  const Json schema = Json::parse(R"({"type": "object", "properties": {
      "size": {"enum": ["small", "large"]}, "count": {"type": "integer", "minimum": 3, "maximum": 88},
      "name": {"type": "string", "maxLength": 10}, "price": {"type": "number"}},
      "required": ["size", "count", "name"]})");
  GenerationSettings settings;
  settings.max_tokens = 500;
  settings.ends = {0};
  settings.vocabulary = 256;
  const auto text = [&](uint64_t seed) {
    settings.sampling.seed = seed;
    const Generation generation = generate(local, {65, 66}, 600, settings);
    const bool complete = generation.reason == StopReason::end_of_document;
    EXPECT_EQ(complete, settings.constraint != nullptr);
    return tokenizer.decode(generation.tokens);
  };
  std::set<std::string> seen;
  settings.constraint =
      grammars.prepare({.kind = AnswerGrammar::Kind::json_schema, .text = schema.dump()});
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const std::string answer = text(seed);
    EXPECT_TRUE(meets(schema, Json::parse(answer))) << answer;
    seen.insert(answer);
  }
  EXPECT_EQ(seen.size(), 20u);
  settings.constraint = nullptr;
  EXPECT_FALSE(Json::accept(text(1)));
}

}  // namespace
}  // namespace attnres::testing::constraint_test
