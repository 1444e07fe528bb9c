// What keeps answers to grammars: of the tokens of one tokenizer, those that may come next.
#pragma once

#include <memory>

#include "attnres/grammar/answer_grammar.h"
#include "attnres/grammar/token_constraint.h"
#include "attnres/text/tokenizer.h"

namespace attnres {

// Grammars may come from anybody: their size, the time and the memory that they take to prepare,
// and what each token of an answer takes, are bounded. Those that were used last are kept, and
// those that were refused. From any thread; one prepares at a time.
class AnswerGrammars {
 public:
  // The tokenizer must outlive it.
  explicit AnswerGrammars(const Tokenizer& tokenizer);
  ~AnswerGrammars();

  // Throws Error on what is no grammar of its kind, on what answers cannot be kept to, with the
  // place in a schema, on what takes too long, and where no token can begin an answer.
  std::shared_ptr<const TokenConstraint> prepare(const AnswerGrammar& answer);

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace attnres
