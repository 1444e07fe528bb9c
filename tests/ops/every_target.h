// Runs a check on every instruction set of this machine.
#pragma once

#include <gtest/gtest.h>
#include <hwy/targets.h>

namespace attnres::testing {

template <class F>
void on_every_target(const F& check) {
  const auto use = [](int64_t target) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  };
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    use(target);
    check();
  }
  use(0);  // all of them, as without a test
}

}  // namespace attnres::testing
