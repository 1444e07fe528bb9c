#include "attnres/support/memory.h"

#include <malloc.h>

namespace attnres {

void keep_freed_memory() {
  mallopt(M_MMAP_MAX, 0);         // a threshold is an int: 2 GiB at most
  mallopt(M_TRIM_THRESHOLD, -1);  // never
}

}  // namespace attnres
