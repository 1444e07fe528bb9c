#include "attnres/infer/snapshot_lengths.h"

#include <algorithm>

namespace attnres {
namespace {

constexpr int64_t kSpacing = 128;

}  // namespace

int64_t SnapshotLengths::last(int64_t length) const {
  if (whole_ < kWorthSharing || length < kWorthSharing) return 0;
  if (whole_ <= length) return whole_;
  const int64_t parting = kWorthSharing <= parting_ && parting_ <= length ? parting_ : 0;
  return std::max(length - length % kSpacing, parting);
}

std::vector<int64_t> SnapshotLengths::between(int64_t first, int64_t end) const {
  std::vector<int64_t> lengths;
  for (int64_t length = last(end - 1); length > first; length = last(length - 1)) {
    lengths.push_back(length);
  }
  std::reverse(lengths.begin(), lengths.end());
  return lengths;
}

}  // namespace attnres
