// Runs a check on every instruction set of this machine.
#pragma once

#include <gtest/gtest.h>

#include "attnres/ops/depth_attention/depth_attention.h"
#include "attnres/ops/instruction_sets.h"

namespace attnres::testing {

template <class F>
void on_every_target(const F& check) {
  for (const std::string& name : depth_attention_instruction_sets()) {
    SCOPED_TRACE(name);
    const InstructionSet only(name);
    check();
  }
}

}  // namespace attnres::testing
