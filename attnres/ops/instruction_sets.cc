#include "attnres/ops/instruction_sets.h"

#include <cstdint>

#include "attnres/support/error.h"
#include "hwy/targets.h"

namespace attnres {
namespace {

// 0: all that the machine has.
void use_only(int64_t target) {
  hwy::SetSupportedTargetsForTest(target);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace

InstructionSet::InstructionSet(const std::string& name) {
  std::string known;
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    if (hwy::TargetName(target) == name) {
      use_only(target);
      return;
    }
    known += std::string(known.empty() ? "" : ", ") + hwy::TargetName(target);
  }
  fail("instruction set {}: there is no kernel for it on this machine; there is {}", name, known);
}

InstructionSet::~InstructionSet() {
  use_only(0);
}

}  // namespace attnres
