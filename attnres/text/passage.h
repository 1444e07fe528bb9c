// Text that somebody else holds.
#pragma once

#include <cstddef>
#include <string_view>

namespace attnres {

// A document, or a part of one: views, which their text must outlive.
struct Passage {
  std::string_view path;  // for messages
  std::string_view text;
  size_t offset = 0;  // of the text in its document, in bytes
};

}  // namespace attnres
