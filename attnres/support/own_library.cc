#include "attnres/support/own_library.h"

#include <dlfcn.h>

namespace attnres {

std::filesystem::path own_library(const std::string& name) {
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(&own_library), &info) == 0) return name;
  return std::filesystem::path(info.dli_fname).replace_filename(name);
}

}  // namespace attnres
