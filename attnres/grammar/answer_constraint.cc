#include "attnres/grammar/answer_constraint.h"

#include <dlpack/dlpack.h>
#include <xgrammar/matcher.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "attnres/grammar/step_budget.h"
#include "attnres/support/error.h"
#include "attnres/support/format.h"

namespace attnres {
namespace {

// Of a token: some 20 ms.
constexpr int64_t kTokenSteps = 5'000'000;
// Of those that say how far an answer has come, which stay as long as it does: some bytes each.
constexpr int64_t kFirstKeptSteps = 2'000'000, kKeptStepsOfToken = 5'000;

size_t words_of(int64_t tokens) {
  return static_cast<size_t>((tokens + 31) / 32);
}

std::vector<std::string> texts_of(const Tokenizer& tokenizer) {
  std::vector<std::string> texts;
  for (int64_t id = 0; id < tokenizer.vocab_size(); ++id) {
    texts.push_back(tokenizer.token_text(static_cast<int32_t>(id)));
  }
  return texts;
}

class AnswerState : public ConstraintState {
 public:
  AnswerState(std::shared_ptr<const GrammarVocabulary> vocabulary,
              const xgrammar::CompiledGrammar& grammar, std::string begins_after)
      : vocabulary_(std::move(vocabulary)), matcher_(grammar), awaited_(std::move(begins_after)) {}

  const AllowedTokens& allowed() override {
    if (!known_) find_allowed();
    known_ = true;
    return allowed_;
  }

  void accept(int32_t token) override {
    known_ = false;
    if (!awaited_.empty()) {
      await(token);
      return;
    }
    bounded([&] { require(matcher_.AcceptToken(token), "token {} is not allowed", token); });
  }

 private:
  void find_allowed() {
    allowed_.bits = vocabulary_->all;
    allowed_.none = allowed_.end = false;
    if (!awaited_.empty()) return;
    try {
      const StepBudget budget(kTokenSteps);
      int64_t size = std::ssize(allowed_.bits);
      DLTensor bits{.data = allowed_.bits.data(),
                    .device = {kDLCPU, 0},
                    .ndim = 1,
                    .dtype = xgrammar::GetBitmaskDLType(),
                    .shape = &size,
                    .strides = nullptr,
                    .byte_offset = 0};
      matcher_.FillNextTokenBitmask(&bits);
    } catch (const TooManySteps&) {
      refuse_ambiguous();
    }
    for (size_t i = 0; i < allowed_.bits.size(); ++i) allowed_.bits[i] &= vocabulary_->texts[i];
    allowed_.end = matcher_.IsCompleted();
    allowed_.none = std::all_of(allowed_.bits.begin(), allowed_.bits.end(),
                                [](uint32_t bits) { return bits == 0; });
    require(!allowed_.none || allowed_.end,
            "the answer's form allows no token of this model's vocabulary here, and no end");
  }

  // Before the form begins.
  void await(int32_t token) {
    const Tokenizer& tokenizer = vocabulary_->tokenizer;
    const std::string text = tokenizer.token_text(token);
    before_ += text.empty() ? tokenizer.control_token_name(token) : text;
    const size_t found = before_.find(awaited_);
    if (found == before_.npos) {
      const size_t kept = std::min(before_.size(), awaited_.size() - 1);
      before_.erase(0, before_.size() - kept);
      return;
    }
    const std::string rest = before_.substr(found + awaited_.size());
    if (rest.find_first_not_of(" \t\r\n") != rest.npos) {
      bounded([&] {
        require(matcher_.AcceptString(rest),
                "the token that ends {} goes on with {}, which the answer's form does not allow",
                one_line(awaited_), one_line(rest));
      });
    }
    awaited_.clear();
    before_.clear();
  }

  // What the matcher keeps of a token.
  template <class F>
  void bounded(const F& accept) {
    try {
      kept_steps_left_ += kKeptStepsOfToken;
      const StepBudget budget(std::min(kTokenSteps, kept_steps_left_));
      accept();
      kept_steps_left_ -= budget.spent();
    } catch (const TooManySteps&) {
      refuse_ambiguous();
    }
  }

  [[noreturn]] static void refuse_ambiguous() {
    fail(
        "the answer's form can be read in too many ways to find its next token; write it with "
        "fewer alternatives and repetitions");
  }

  std::shared_ptr<const GrammarVocabulary> vocabulary_;
  xgrammar::GrammarMatcher matcher_;
  std::string awaited_;  // empty: it has come
  std::string before_;   // the end of what came before it
  AllowedTokens allowed_;
  bool known_ = false;
  int64_t kept_steps_left_ = kFirstKeptSteps;
};

}  // namespace

GrammarVocabulary::GrammarVocabulary(const Tokenizer& tokenizer)
    : tokenizer(tokenizer),
      all(words_of(tokenizer.vocab_size())),
      texts(all),
      info(texts_of(tokenizer), xgrammar::VocabType::RAW, static_cast<int>(tokenizer.vocab_size()),
           std::vector<int32_t>()) {
  for (int64_t id = 0; id < tokenizer.vocab_size(); ++id) all[id / 32] |= 1U << (id % 32);
  for (const auto& [id, text] : info.GetSortedDecodedVocab()) texts[id / 32] |= 1U << (id % 32);
}

AnswerConstraint::AnswerConstraint(std::shared_ptr<const GrammarVocabulary> vocabulary,
                                   const xgrammar::CompiledGrammar& grammar,
                                   std::string begins_after)
    : vocabulary_(std::move(vocabulary)),
      grammar_(grammar),
      begins_after_(std::move(begins_after)) {}

std::unique_ptr<ConstraintState> AnswerConstraint::start() const {
  const StepBudget budget(kTokenSteps);
  return std::make_unique<AnswerState>(vocabulary_, grammar_, begins_after_);
}

}  // namespace attnres
