#include "attnres/depth/state_plan.h"

#include <functional>
#include <numeric>

namespace attnres {

int64_t PlannedTensor::numbers() const {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

}  // namespace attnres
