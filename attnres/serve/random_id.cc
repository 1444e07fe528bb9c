#include "attnres/serve/random_id.h"

#include <fmt/core.h>

#include <cstdint>
#include <random>

namespace attnres {

std::string random_id(const std::string& prefix) {
  thread_local std::random_device device;
  std::string id = prefix;
  for (int i = 0; i < 4; ++i) id += fmt::format("{:08x}", static_cast<uint32_t>(device()));
  return id;
}

}  // namespace attnres
