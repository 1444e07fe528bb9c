#include "attnres/support/build_info.h"

#include <fmt/core.h>
#include <torch/headeronly/version.h>

#include <nlohmann/json.hpp>

namespace attnres {

std::string program_version() {
  return ATTNRES_VERSION;
}

std::string compiler_version() {
#ifdef __clang__
  return fmt::format("Clang {}.{}.{}", __clang_major__, __clang_minor__, __clang_patchlevel__);
#else
  return fmt::format("GCC {}.{}.{}", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
#endif
}

std::string torch_version() {
  return fmt::format("{}.{}.{}", TORCH_VERSION_MAJOR, TORCH_VERSION_MINOR, TORCH_VERSION_PATCH);
}

Json describe_build() {
  return {
      {"version", program_version()}, {"compiler", compiler_version()}, {"torch", torch_version()}};
}

}  // namespace attnres
