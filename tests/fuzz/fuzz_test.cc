// Every target on what it begins with, on what was a fault once (found/), and on these cut off and
// changed; scripts/fuzz goes on from there.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "attnres/support/random.h"
#include "tests/fuzz/fuzz_inputs.h"
#include "tests/fuzz/fuzz_target.h"

namespace attnres::fuzz_test {
namespace {

using testing::FuzzTarget;
using testing::repository_file;
using testing::repository_files;

class Fuzz : public ::testing::TestWithParam<size_t> {
 protected:
  Fuzz() { testing::clear_fuzz_folder(); }
  const FuzzTarget& target() const { return testing::fuzz_targets()[GetParam()]; }

  // Whether it was not refused.
  bool run(std::string_view input, const std::string& what) const {
    try {
      return testing::run_target(target(), input);
    } catch (const std::exception& e) {
      ADD_FAILURE() << target().name << ", " << what << ": " << e.what();
      return false;
    }
  }
};

TEST_P(Fuzz, ReadsItsSeeds) {
  int read = 0;
  const std::vector<std::string> seeds = target().seeds();
  for (size_t i = 0; i < seeds.size(); ++i) read += run(seeds[i], "seed " + std::to_string(i));
  // The others are those that have to be refused.
  EXPECT_GE(read, (std::ssize(seeds) + 1) / 2) << target().name;
}

TEST_P(Fuzz, RefusesWhatWasFound) {
  const std::string folder = "tests/fuzz/found";
  for (const std::string& path : repository_files(folder, "")) {
    if (path.starts_with(folder + "/" + target().name + "/")) run(repository_file(path), path);
  }
}

TEST_P(Fuzz, RefusesSeedsThatAreDamaged) {
  constexpr size_t kMostSeeds = 4, kMostBytes = 8 << 10;
  constexpr int kTries = 12;
  const RandomStream random(1, target().name);
  uint64_t drawn = 0;
  const auto below = [&](size_t bound) {
    return static_cast<size_t>(random.below(bound, drawn++));
  };
  const std::vector<std::string> seeds = target().seeds();
  for (size_t i = 0; i < std::min(seeds.size(), kMostSeeds); ++i) {
    const std::string& seed = seeds[i];
    if (seed.empty() || seed.size() > kMostBytes) continue;
    for (int attempt = 0; attempt < kTries; ++attempt) {
      const std::string what = fmt::format("seed {}, try {}", i, attempt);
      run(std::string_view(seed).substr(0, below(seed.size())), what + " cut off");
      std::string changed = seed;
      for (int flips = 0; flips <= attempt % 3; ++flips) {
        changed[below(seed.size())] ^= static_cast<char>(1U << below(8));
      }
      run(changed, what + " changed");
    }
  }
}

std::vector<size_t> all_targets() {
  std::vector<size_t> indices(testing::fuzz_targets().size());
  for (size_t i = 0; i < indices.size(); ++i) indices[i] = i;
  return indices;
}

INSTANTIATE_TEST_SUITE_P(Targets, Fuzz, ::testing::ValuesIn(all_targets()),
                         [](const auto& info) { return testing::fuzz_targets()[info.param].name; });

// A target that throws what is no refusal fails.
TEST(FuzzTarget, TellsFaultsFromRefusals) {
  const auto throws_error = [](std::string_view) { fail("no"); };
  const auto throws_other = [](std::string_view) { throw std::out_of_range("no"); };
  const auto no_seeds = [] { return std::vector<std::string>(); };
  EXPECT_FALSE(testing::run_target({"a", throws_error, no_seeds}, ""));
  EXPECT_THROW(testing::run_target({"a", throws_other, no_seeds}, ""), std::out_of_range);
}

}  // namespace
}  // namespace attnres::fuzz_test
