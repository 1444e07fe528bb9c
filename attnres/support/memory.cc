#include "attnres/support/memory.h"

#include <malloc.h>

#include <cstdlib>

#include "attnres/support/tensor_memory.h"

namespace attnres {

void keep_freed_memory() {
  mallopt(M_MMAP_MAX, 0);         // a threshold is an int: 2 GiB at most
  mallopt(M_TRIM_THRESHOLD, -1);  // never
  constexpr int kUnlessSet = 0;
  ::setenv("THP_MEM_ALLOC_ENABLE", "1", kUnlessSet);  // libtorch's allocator looks for it
  use_tensor_memory();
}

void give_back_freed_memory() {
  malloc_trim(0);
  trim_tensor_memory();
}

}  // namespace attnres
