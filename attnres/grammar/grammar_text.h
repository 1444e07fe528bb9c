// An AnswerGrammar as XGrammar's grammar.
#pragma once

#include <xgrammar/grammar.h>

#include "attnres/grammar/answer_grammar.h"
#include "attnres/grammar/step_budget.h"

namespace attnres {

// Within a budget of this thread. Throws Error on what is no grammar of its kind, and on what
// answers cannot be kept to; of a schema with the place.
xgrammar::Grammar make_grammar(const AnswerGrammar& answer, const StepBudget& budget);

// Throws Error where XGrammar warned: it passes over something.
void refuse_warnings(const StepBudget& budget);

}  // namespace attnres
