#include "attnres/data/mixture.h"

#include <algorithm>
#include <cmath>

#include "attnres/support/error.h"

namespace attnres {
namespace {

constexpr int kShareBits = 62;
constexpr double kLeastWeight = 0x1.0p-40;  // beside the largest

// floor(rows * share).
uint64_t taken(uint64_t rows, uint64_t share) {
  return static_cast<uint64_t>((static_cast<unsigned __int128>(rows) * share) >> kShareBits);
}

}  // namespace

Mixture::Mixture(const std::vector<double>& weights) {
  require_usage(!weights.empty(), "weights: name one for each source");
  double largest = 0, sum = 0;
  for (const double weight : weights) {
    require_usage(std::isfinite(weight) && weight > 0, "weights: must be above 0, got {}", weight);
    largest = std::max(largest, weight);
  }
  for (const double weight : weights) {
    require_usage(weight / largest >= kLeastWeight, "weights: {} is nothing beside {}", weight,
                  largest);
    sum += weight / largest;
    shares_.push_back(static_cast<uint64_t>(std::ldexp(weight / largest / sum, kShareBits)));
  }
}

Mixture::Turn Mixture::turn(uint64_t i) const {
  for (size_t k = shares_.size() - 1; k > 0; --k) {
    const uint64_t before = taken(i, shares_[k]);
    if (taken(i + 1, shares_[k]) > before) return {static_cast<int>(k), before};
    i -= before;
  }
  return {0, i};
}

}  // namespace attnres
