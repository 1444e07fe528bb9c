// Measurements as JSON that are equal but for rounding.
#pragma once

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "attnres/support/json.h"

namespace attnres::testing {

inline void expect_near(const Json& got, const Json& expected, double tolerance,
                        const std::string& path = "") {
  ASSERT_EQ(got.type(), expected.type()) << path;
  ASSERT_EQ(got.size(), expected.size()) << path;
  if (expected.is_number_float()) {
    const double number = expected.get<double>();
    if (std::isnan(number) && std::isnan(got.get<double>())) return;
    EXPECT_NEAR(got.get<double>(), number, tolerance * std::max(1.0, std::abs(number))) << path;
  } else if (expected.is_array()) {
    for (size_t i = 0; i < expected.size(); ++i) {
      expect_near(got[i], expected[i], tolerance, fmt::format("{}/{}", path, i));
    }
  } else if (expected.is_object()) {
    for (const auto& [key, value] : expected.items()) {
      ASSERT_TRUE(got.contains(key)) << path << "/" << key;
      expect_near(got.at(key), value, tolerance, fmt::format("{}/{}", path, key));
    }
  } else {
    EXPECT_EQ(got, expected) << path;
  }
}

}  // namespace attnres::testing
