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
              const std::optional<xgrammar::CompiledGrammar>& grammar,
              std::shared_ptr<const std::vector<FreePartMarks>> marks)
      : vocabulary_(std::move(vocabulary)),
        marks_(std::move(marks)),
        free_parts_(*marks_, vocabulary_->tokenizer) {
    if (grammar) matcher_.emplace(*grammar);
    form_is_possible_ = matcher_.has_value();
  }

  const AllowedTokens& allowed() override {
    if (!known_) find_allowed();
    known_ = true;
    return allowed_;
  }

  void accept(int32_t token) override {
    known_ = false;
    if (free_parts_.within()) {
      const auto rest = free_parts_.go_on(token);
      if (rest) begin_form(*rest);
      return;
    }
    const bool begins_free_part = free_parts_.begin(token);
    if (free_parts_.within()) return;
    bounded([&] { form_is_possible_ = form_is_possible_ && matcher_->AcceptToken(token); });
    require(form_is_possible_ || begins_free_part, "token {} is not allowed", token);
  }

 private:
  void find_allowed() {
    allowed_.none = false;
    allowed_.end = free_parts_.may_end();
    if (free_parts_.within()) {
      allowed_.bits = vocabulary_->all;
      return;
    }
    if (form_is_possible_) {
      find_allowed_of_form();
    } else {
      allowed_.bits.assign(vocabulary_->all.size(), 0);
    }
    for (const int32_t token : free_parts_.next()) allowed_.bits[token / 32] |= 1U << (token % 32);
    allowed_.none = std::all_of(allowed_.bits.begin(), allowed_.bits.end(),
                                [](uint32_t bits) { return bits == 0; });
    require(!allowed_.none || allowed_.end,
            "the answer's form allows no token of this model's vocabulary here, and no end");
  }

  void find_allowed_of_form() {
    allowed_.bits = vocabulary_->all;  // where all are allowed nothing is written
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
      matcher_->FillNextTokenBitmask(&bits);
    } catch (const TooManySteps&) {
      refuse_ambiguous();
    }
    for (size_t i = 0; i < allowed_.bits.size(); ++i) allowed_.bits[i] &= vocabulary_->texts[i];
    allowed_.end = matcher_->IsCompleted();
  }

  // After a free part, whose last token may have some of it.
  void begin_form(const std::string& text) {
    form_is_possible_ = matcher_.has_value();
    bounded([&] {
      if (matcher_) matcher_->Reset();
      if (text.find_first_not_of(" \t\r\n") == text.npos) return;
      require(matcher_ && matcher_->AcceptString(text),
              "the token that ends a part goes on with {}, which the answer's form does not allow",
              one_line(text));
    });
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
  std::optional<xgrammar::GrammarMatcher> matcher_;
  std::shared_ptr<const std::vector<FreePartMarks>> marks_;
  FreeParts free_parts_;
  bool form_is_possible_;  // after what came since the last free part
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
                                   std::optional<xgrammar::CompiledGrammar> grammar,
                                   const std::vector<FreePart>& free_parts)
    : vocabulary_(std::move(vocabulary)), grammar_(std::move(grammar)) {
  std::vector<FreePartMarks> marks;
  for (const FreePart& part : free_parts) marks.emplace_back(part, vocabulary_->tokenizer);
  free_parts_ = std::make_shared<const std::vector<FreePartMarks>>(std::move(marks));
}

std::unique_ptr<ConstraintState> AnswerConstraint::start() const {
  const StepBudget budget(kTokenSteps);
  return std::make_unique<AnswerState>(vocabulary_, grammar_, free_parts_);
}

}  // namespace attnres
