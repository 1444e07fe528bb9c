#include "attnres/depth/state_plan.h"

#include <functional>
#include <numeric>

namespace attnres {

int64_t PlannedTensor::numbers() const {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

std::vector<int64_t> PlannedTensor::part_sizes(const TensorPart& part, int64_t tokens) const {
  const bool by_heads = axis == ShardAxis::heads;
  std::vector<int64_t> all = {by_heads ? tokens : rows_of_part(part, tokens).count};
  all.insert(all.end(), sizes.begin(), sizes.end());
  if (by_heads) all[1] /= part.size;
  return all;
}

}  // namespace attnres
