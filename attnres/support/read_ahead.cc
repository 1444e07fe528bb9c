#include "attnres/support/read_ahead.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace attnres {

void read_ahead(const void* begin, size_t bytes) {
  static const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<uintptr_t>(begin);
  const uintptr_t before = address % page;
  // The system's advice changes nothing that is read.
  ::madvise(static_cast<char*>(const_cast<void*>(begin)) - before, bytes + before, MADV_WILLNEED);
}

bool reads_from_disk() {
  static std::atomic<int64_t> seen = 0;
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  const int64_t reads = used.ru_inblock + used.ru_majflt;  // a network's files have faults alone
  return seen.exchange(reads) != reads;
}

}  // namespace attnres
