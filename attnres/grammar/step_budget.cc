#include "attnres/grammar/step_budget.h"

#include <limits>
#include <string_view>

#include "attnres/support/format.h"

namespace attnres {
namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
constexpr int kWarning = 2;  // of XGrammar's levels

thread_local int64_t steps_left = kNoLimit;
thread_local std::vector<std::string> warnings_so_far;

// XGrammar's words, without the condition of its own that did not hold.
std::string told(std::string message) {
  constexpr std::string_view kBefore = "Check failed: ", kAfter = " is false: ";
  const size_t begin = message.find(kBefore);
  const size_t end = begin == message.npos ? message.npos : message.find(kAfter, begin);
  if (end != message.npos) message.erase(begin, end + kAfter.size() - begin);
  return one_line(message);
}

}  // namespace

StepBudget::StepBudget(int64_t most) : most_(most) {
  steps_left = most;
  warnings_so_far.clear();
}

StepBudget::~StepBudget() {
  steps_left = kNoLimit;
}

int64_t StepBudget::spent() const {
  return most_ - steps_left;
}

const std::vector<std::string>& StepBudget::warnings() const {
  return warnings_so_far;
}

}  // namespace attnres

// What XGrammar leaves to programs that it is built for.
namespace xgrammar {

bool CountStep();
[[noreturn]] void LogFatalImpl(const std::string& file, int line, const std::string& message);
void LogMessageImpl(const std::string& file, int line, int level, const std::string& message);

bool CountStep() {
  if (--attnres::steps_left >= 0) return false;
  attnres::steps_left = attnres::kNoLimit;  // destructors may count further
  throw attnres::TooManySteps("it takes too many steps");
}

void LogFatalImpl(const std::string& /*file*/, int /*line*/, const std::string& message) {
  attnres::throw_error(attnres::told(message));
}

void LogMessageImpl(const std::string& /*file*/, int /*line*/, int level,
                    const std::string& message) {
  if (level == attnres::kWarning) attnres::warnings_so_far.push_back(attnres::told(message));
}

}  // namespace xgrammar
