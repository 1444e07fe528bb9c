#include "attnres/parameters/tensor_group.h"

#include <algorithm>

namespace attnres {

RowRange rows_of_part(const TensorPart& part, int64_t rows) {
  const int64_t each = rows / part.size, more = rows % part.size;
  return {part.rank * each + std::min<int64_t>(part.rank, more), each + (part.rank < more ? 1 : 0)};
}

at::Tensor part_of_rows(const TensorPart& part, const at::Tensor& whole) {
  const RowRange own = rows_of_part(part, whole.size(0));
  return whole.narrow(0, own.first, own.count);
}

}  // namespace attnres
