#include "tests/fuzz/fuzz_target.h"

#include <utility>

namespace attnres::testing {

std::vector<FuzzTarget>& fuzz_targets() {
  static std::vector<FuzzTarget> targets;
  return targets;
}

ListedFuzzTarget::ListedFuzzTarget(FuzzTarget target) {
  fuzz_targets().push_back(std::move(target));
}

bool run_target(const FuzzTarget& target, std::string_view input) {
  return attempt([&] { target.run(input); });
}

}  // namespace attnres::testing
