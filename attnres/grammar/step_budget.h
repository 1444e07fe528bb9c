// Bounds what XGrammar takes for a grammar that somebody else wrote: it counts the steps of its
// innermost loops (cmake/xgrammar/steps.h), 3 to 20 ns each, whatever they are.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "attnres/support/error.h"

namespace attnres {

class TooManySteps : public Error {
 public:
  using Error::Error;
};

// While one lives, XGrammar throws TooManySteps after `most` steps of this thread. One at a time.
class StepBudget {
 public:
  explicit StepBudget(int64_t most);
  ~StepBudget();
  StepBudget(const StepBudget&) = delete;
  StepBudget& operator=(const StepBudget&) = delete;

  int64_t spent() const;
  // What XGrammar warned of in this thread since.
  const std::vector<std::string>& warnings() const;

 private:
  int64_t most_;
};

}  // namespace attnres
