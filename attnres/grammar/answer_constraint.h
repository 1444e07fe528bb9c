// A TokenConstraint of XGrammar's.
#pragma once

#include <xgrammar/compiler.h>
#include <xgrammar/tokenizer_info.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "attnres/grammar/free_parts.h"
#include "attnres/grammar/token_constraint.h"
#include "attnres/text/tokenizer.h"

namespace attnres {

// The tokens of a tokenizer, as XGrammar has them.
struct GrammarVocabulary {
  explicit GrammarVocabulary(const Tokenizer& tokenizer);

  const Tokenizer& tokenizer;
  // As AllowedTokens::bits: all tokens, and those that are not for control alone.
  std::vector<uint32_t> all, texts;
  xgrammar::TokenizerInfo info;
};

class AnswerConstraint : public TokenConstraint {
 public:
  // Without a grammar there are the free parts alone.
  AnswerConstraint(std::shared_ptr<const GrammarVocabulary> vocabulary,
                   std::optional<xgrammar::CompiledGrammar> grammar,
                   const std::vector<FreePart>& free_parts);
  std::unique_ptr<ConstraintState> start() const override;

 private:
  std::shared_ptr<const GrammarVocabulary> vocabulary_;
  std::optional<xgrammar::CompiledGrammar> grammar_;
  std::shared_ptr<const std::vector<FreePartMarks>> free_parts_;
};

}  // namespace attnres
