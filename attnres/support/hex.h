// Hashes as files have them.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <string>

namespace attnres {

// 16 hexadecimal digits.
inline std::string hex(uint64_t hash) {
  return fmt::format("{:016x}", hash);
}

}  // namespace attnres
