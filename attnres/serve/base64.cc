#include "attnres/serve/base64.h"

#include <algorithm>
#include <cstdint>

namespace attnres {

std::string base64(const void* bytes, size_t count) {
  constexpr const char* kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const auto* from = static_cast<const unsigned char*>(bytes);
  std::string text;
  for (size_t i = 0; i < count; i += 3) {
    const size_t given = std::min<size_t>(3, count - i);
    uint32_t group = 0;
    for (size_t k = 0; k < 3; ++k) group = group << 8 | (k < given ? from[i + k] : 0U);
    for (size_t k = 0; k < 4; ++k) {
      text += k <= given ? kDigits[group >> (18 - 6 * k) & 63] : '=';
    }
  }
  return text;
}

}  // namespace attnres
