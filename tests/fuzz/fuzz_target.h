// What strangers' bytes are given to: by libFuzzer (scripts/fuzz) and, from a list of inputs, by
// the ordinary tests (fuzz_test.cc). NAME_fuzz.cc has the target NAME.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "attnres/support/error.h"

namespace attnres::testing {

struct FuzzTarget {
  std::string name;
  // Reads the input by the program's own reader and does something small with what was read. Error
  // is a refusal; anything else that is thrown is a fault.
  void (*run)(std::string_view input);
  // Inputs to begin with, most of which are read.
  std::vector<std::string> (*seeds)();
};

// Those that are linked in.
std::vector<FuzzTarget>& fuzz_targets();

// A target in this list, before main begins.
struct ListedFuzzTarget {
  ListedFuzzTarget(FuzzTarget target);
};

// Whether it was not refused.
bool run_target(const FuzzTarget& target, std::string_view input);

// The same of a part of a target, after which the others are still to be tried.
template <class F>
bool attempt(const F& f) {
  try {
    f();
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace attnres::testing
