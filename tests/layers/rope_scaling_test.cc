// Scaled rotary frequencies against those that transformers 5.24 gives for heads of 16 channels, a
// theta of 500 and an original context of 64.
#include "attnres/layers/rope_scaling.h"

#include <gmock/gmock.h>

#include <vector>

#include "attnres/support/config.h"
#include "attnres/support/error.h"
#include "tests/text/test_files.h"

namespace attnres::rope_scaling_test {
namespace {

using ::testing::HasSubstr;

struct Case {
  RopeScaling scaling;
  std::vector<double> expected;
  double magnitude = 1;
};

std::vector<Case> cases() {
  const std::vector<double> divided = {0.25,       0.11496582,   0.05286856,  0.024312312,
                                       0.01118034, 0.0051414282, 0.002364354, 0.0010872796};
  const auto ends_as_divided = [&](std::vector<double> first) {
    first.insert(first.end(), divided.begin() + std::ssize(first), divided.end());
    return first;
  };
  return {
      {{.type = "linear", .factor = 4}, divided},
      {{.type = "llama3", .factor = 8, .original_context = 64},
       {1.0, 0.45986328, 0.097616628, 0.012156156, 0.0055901702, 0.0025707141, 0.001182177,
        0.00054363982}},
      {{.type = "yarn", .factor = 4, .original_context = 64},
       ends_as_divided({1.0, 0.34489745, 0.10573712}),
       1.138629436111989},
      {{.type = "yarn",
        .factor = 4,
        .original_context = 64,
        .beta_fast = 20,
        .beta_slow = 2,
        .attention_factor = 1.25,
        .truncate = false},
       ends_as_divided({1.0, 0.29527575, 0.060098693}),
       1.25},
      // As Kimi K2 has them.
      {{.type = "yarn", .factor = 4, .original_context = 64, .beta_fast = 1, .beta_slow = 1},
       ends_as_divided({1.0, 0.45986328, 0.21147424}),
       1.138629436111989},
  };
}

bool agree(const Case& given, const RotaryFrequencies& actual) {
  bool all = std::abs(actual.magnitude - given.magnitude) < 1e-12 &&
             actual.of_pairs.size() == given.expected.size();
  for (size_t c = 0; all && c < given.expected.size(); ++c) {
    all = std::abs(actual.of_pairs[c] / given.expected[c] - 1) < 1e-6;  // they are of float32
  }
  return all;
}

TEST(RopeScaling, GivesTheFrequenciesOfTransformers) {
  for (const Case& given : cases()) {
    EXPECT_TRUE(agree(given, scaled_frequencies(16, 500, given.scaling))) << given.scaling.type;
    RopeScaling other = given.scaling;
    other.factor += 0.5;
    EXPECT_FALSE(agree(given, scaled_frequencies(16, 500, other)));
    EXPECT_FALSE(agree(given, scaled_frequencies(16, 501, given.scaling)));
  }
  EXPECT_EQ(scaled_frequencies(16, 500, {}), rotary_frequencies(16, 500));
}

TEST(RopeScaling, SaysWhatItDoesNotCompute) {
  const auto message = [](const RopeScaling& scaling) {
    return message_of<UsageError>([&] {
      check_config(scaling, "model.rope_scaling");
      scaling.check("model.rope_scaling");
    });
  };
  EXPECT_THAT(message({.type = "longrope", .factor = 2}),
              HasSubstr("model.rope_scaling.type: expected none, linear, llama3 or yarn, got "
                        "longrope"));
  EXPECT_THAT(message({.factor = 2}), HasSubstr("factor: 2 without a type has no effect"));
  EXPECT_THAT(message({.type = "linear", .factor = 0.5}),
              HasSubstr("factor: expected 1 to 1000000"));
  EXPECT_THAT(message({.type = "yarn", .factor = 2}), HasSubstr("original_context: expected"));
  EXPECT_THAT(message({.type = "llama3",
                       .factor = 2,
                       .original_context = 8,
                       .low_freq_factor = 4,
                       .high_freq_factor = 4}),
              HasSubstr("low_freq_factor < high_freq_factor"));
  EXPECT_THAT(
      message({.type = "yarn", .factor = 2, .original_context = 8, .beta_fast = 1, .beta_slow = 2}),
      HasSubstr("beta_slow <= beta_fast"));
}

}  // namespace
}  // namespace attnres::rope_scaling_test
