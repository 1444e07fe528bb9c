#include "attnres/parameters/precision.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "attnres/support/error.h"
#include "attnres/support/format.h"

namespace attnres {

WeightFormat WeightFormats::of(int site, const std::string& role) const {
  if (own_ == nullptr) return all_;
  const auto found = own_->find({site, role});
  return found == own_->end() ? all_ : found->second;
}

std::string WeightFormats::name() const {
  return own_ == nullptr ? blocks_of(all_).name : "mixed";
}

Precision parse_precision(const std::string& name, const std::string& what) {
  if (name == kFloat32Precision) return {};
  if (name == kBfloat16Precision) return {at::kFloat, at::kBFloat16};
  fail_usage("{}: expected {} or {}, got {}", what, kFloat32Precision, kBfloat16Precision,
             one_line(name));
}

const std::vector<std::string>& weight_format_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> packed;
    for (const WeightBlocks& blocks : kWeightFormats) {
      if (blocks.is_packed_here) packed.emplace_back(blocks.name);
    }
    return packed;
  }();
  return names;
}

WeightFormat parse_weight_format(const std::string& name, const std::string& what) {
  const std::vector<std::string>& names = weight_format_names();
  const auto found = std::find(names.begin(), names.end(), name);
  require_usage(found != names.end(), "{}: expected one of {}, got {}", what,
                fmt::join(names, ", "), one_line(name));
  const auto format = std::find_if(kWeightFormats.begin(), kWeightFormats.end(),
                                   [&](const WeightBlocks& blocks) { return name == blocks.name; });
  return static_cast<WeightFormat>(format - kWeightFormats.begin());
}

}  // namespace attnres
