#include "attnres/support/precision.h"

#include "attnres/support/error.h"

namespace attnres {

Precision parse_precision(const std::string& name, const std::string& what) {
  if (name == kFloat32Precision) return {};
  if (name == kBfloat16Precision) return {at::kFloat, at::kBFloat16};
  fail_usage("{}: expected {} or {}, got {}", what, kFloat32Precision, kBfloat16Precision, name);
}

}  // namespace attnres
