// Bytes as text (RFC 4648).
#pragma once

#include <cstddef>
#include <string>

namespace attnres {

std::string base64(const void* bytes, size_t count);

}  // namespace attnres
