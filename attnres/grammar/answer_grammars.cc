#include "attnres/grammar/answer_grammars.h"

#include <xgrammar/compiler.h>

#include <list>
#include <mutex>
#include <optional>
#include <utility>

#include "attnres/grammar/answer_constraint.h"
#include "attnres/grammar/grammar_text.h"
#include "attnres/grammar/step_budget.h"
#include "attnres/support/error.h"

namespace attnres {
namespace {

constexpr size_t kLongest = size_t{64} << 10;     // bytes of a grammar
constexpr size_t kBytesOfText = 32;               // of each of some, beside its characters
constexpr int64_t kPreparingSteps = 200'000'000;  // some 2 s
constexpr size_t kMostKept = 64, kMostKeptBytes = size_t{256} << 20;

size_t text_bytes(const AnswerGrammar& answer) {
  size_t bytes = answer.text.size();
  for (const std::string& choice : answer.choices) bytes += choice.size() + kBytesOfText;
  return bytes;
}

xgrammar::CompiledGrammar compile(const xgrammar::Grammar& grammar,
                                  const xgrammar::TokenizerInfo& vocabulary) {
  const auto compile = [&](bool share) {
    return xgrammar::GrammarCompiler(vocabulary, /*max_threads=*/1, share).CompileGrammar(grammar);
  };
  // Masks of equal rules are shared, but for some rules that it cannot compare.
  try {
    return compile(/*share=*/true);
  } catch (const TooManySteps&) {
    throw;
  } catch (const Error&) {
    return compile(/*share=*/false);
  }
}

}  // namespace

struct AnswerGrammars::Parts {
  // What came of one: the grammar, where it has one, or what is wrong.
  struct Prepared {
    AnswerGrammar answer;
    std::optional<xgrammar::CompiledGrammar> grammar = {};
    std::string error = {};
    size_t bytes = 0;
  };

  explicit Parts(const Tokenizer& tokenizer) : tokenizer(tokenizer) {}

  std::optional<Prepared> find(const AnswerGrammar& answer);
  void keep(Prepared prepared);
  Prepared make(const AnswerGrammar& answer);

  const Tokenizer& tokenizer;
  std::mutex preparing;  // one at a time
  std::shared_ptr<const GrammarVocabulary> vocabulary = {};
  std::mutex keeping;             // of what follows
  std::list<Prepared> kept = {};  // the last used first
  size_t kept_bytes = 0;
};

std::optional<AnswerGrammars::Parts::Prepared> AnswerGrammars::Parts::find(
    const AnswerGrammar& answer) {
  const std::lock_guard lock(keeping);
  for (auto entry = kept.begin(); entry != kept.end(); ++entry) {
    if (entry->answer != answer) continue;
    kept.splice(kept.begin(), kept, entry);
    return kept.front();
  }
  return std::nullopt;
}

void AnswerGrammars::Parts::keep(Prepared prepared) {
  const std::lock_guard lock(keeping);
  kept_bytes += prepared.bytes;
  kept.push_front(std::move(prepared));
  while (kept.size() > kMostKept || (kept_bytes > kMostKeptBytes && kept.size() > 1)) {
    kept_bytes -= kept.back().bytes;
    kept.pop_back();
  }
}

AnswerGrammars::Parts::Prepared AnswerGrammars::Parts::make(const AnswerGrammar& answer) {
  if (vocabulary == nullptr) vocabulary = std::make_shared<const GrammarVocabulary>(tokenizer);
  if (answer.kind == AnswerGrammar::Kind::nothing) return {.answer = answer};
  Prepared prepared{.answer = answer, .bytes = text_bytes(answer)};
  try {
    {
      const StepBudget budget(kPreparingSteps);
      const xgrammar::Grammar grammar = make_grammar(answer, budget);
      prepared.grammar = compile(grammar, vocabulary->info);
      refuse_warnings(budget);
    }
    prepared.bytes += prepared.grammar->MemorySizeBytes();
    AnswerConstraint(vocabulary, *prepared.grammar, {}).start()->allowed();
  } catch (const TooManySteps&) {
    prepared.error =
        "it takes too long to prepare; write it with fewer alternatives, repetitions and bounds";
  } catch (const std::bad_alloc&) {
    throw;  // no fault of the grammar
  } catch (const std::exception& e) {
    prepared.error = e.what();
  }
  if (!prepared.error.empty()) prepared.grammar.reset();
  return prepared;
}

AnswerGrammars::AnswerGrammars(const Tokenizer& tokenizer)
    : parts_(std::make_unique<Parts>(tokenizer)) {}

AnswerGrammars::~AnswerGrammars() = default;

std::shared_ptr<const TokenConstraint> AnswerGrammars::prepare(const AnswerGrammar& answer) {
  const size_t bytes = text_bytes(answer);
  require(bytes <= kLongest, "expected {} bytes at most, got {}", kLongest, bytes);
  AnswerGrammar form = answer;
  form.free_parts.clear();
  std::optional<Parts::Prepared> prepared = parts_->find(form);
  if (!prepared) {
    const std::lock_guard one_at_a_time(parts_->preparing);
    prepared = parts_->find(form);
    if (!prepared) {
      prepared = parts_->make(form);
      parts_->keep(*prepared);
    }
  }
  require(prepared->error.empty(), "{}", prepared->error);
  return std::make_shared<const AnswerConstraint>(parts_->vocabulary, prepared->grammar,
                                                  answer.free_parts);
}

}  // namespace attnres
