#include "attnres/support/memory.h"

#include <malloc.h>

#include <limits>

namespace attnres {

void keep_freed_memory() {
  mallopt(M_MMAP_THRESHOLD, std::numeric_limits<int>::max());
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
}

}  // namespace attnres
