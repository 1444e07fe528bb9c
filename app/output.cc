#include "app/output.h"

#include <cerrno>
#include <cstdio>
#include <system_error>

namespace attnres {

void flush_output() {
  if (std::fflush(stdout) != 0) throw std::system_error(errno, std::generic_category());
}

}  // namespace attnres
