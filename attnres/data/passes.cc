#include "attnres/data/passes.h"

#include <fmt/core.h>

namespace attnres {

std::string format_passes(double ratio, std::string_view text) {
  if (ratio >= 0.995) {
    return fmt::format("{:.{}f} passes over {}", ratio, ratio < 9.95 ? 1 : 0, text);
  }
  if (ratio < 0.0005) return fmt::format("less than 0.05 % of {}", text);
  return fmt::format("{:.2g} % of {}", 100 * ratio, text);
}

}  // namespace attnres
