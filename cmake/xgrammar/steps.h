// Included before every source of XGrammar. The library has no way to stop what takes too long, but
// checks of its own innermost loops, which only its developers compile: here each of them is a
// step, which attnres/grammar/step_budget.cc counts, and which throws where there are too many.
#pragma once

// Its destructor checks too, and must not throw: it keeps what it has.
#include "support/recursion_guard.h"

namespace xgrammar {
bool CountStep();  // always false
}

#undef XGRAMMAR_DCHECK
#define XGRAMMAR_DCHECK(x) \
  while (::xgrammar::CountStep()) XGRAMMAR_ICHECK(x)
