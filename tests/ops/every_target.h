// Runs a check on every instruction set of this machine.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "attnres/ops/depth_attention/kernel.h"
#include "attnres/ops/instruction_sets.h"

namespace attnres::testing {

template <class F>
void on_every_target(const F& check) {
  const std::vector<std::string> names = kernel::instruction_sets();
  ASSERT_FALSE(names.empty());
  for (const std::string& name : names) {
    SCOPED_TRACE(name);
    const InstructionSet only(name);
    check();
  }
}

}  // namespace attnres::testing
