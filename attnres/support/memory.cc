#include "attnres/support/memory.h"

#include <malloc.h>

namespace attnres {

void keep_freed_memory() {
  mallopt(M_MMAP_MAX, 0);         // a threshold would do for blocks up to 32 MiB only
  mallopt(M_TRIM_THRESHOLD, -1);  // never
}

}  // namespace attnres
