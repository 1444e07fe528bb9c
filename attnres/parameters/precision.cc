#include "attnres/parameters/precision.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "attnres/support/error.h"
#include "attnres/support/format.h"

namespace attnres {

Precision parse_precision(const std::string& name, const std::string& what) {
  if (name == kFloat32Precision) return {};
  if (name == kBfloat16Precision) return {at::kFloat, at::kBFloat16};
  fail_usage("{}: expected {} or {}, got {}", what, kFloat32Precision, kBfloat16Precision,
             one_line(name));
}

const std::vector<std::string>& weight_format_names() {
  static const std::vector<std::string> names = {"f32", "f16", "bf16", "q8_0", "q4_0"};
  return names;
}

WeightFormat parse_weight_format(const std::string& name, const std::string& what) {
  const std::vector<std::string>& names = weight_format_names();
  const auto found = std::find(names.begin(), names.end(), name);
  require_usage(found != names.end(), "{}: expected one of {}, got {}", what,
                fmt::join(names, ", "), one_line(name));
  return static_cast<WeightFormat>(found - names.begin());
}

}  // namespace attnres
