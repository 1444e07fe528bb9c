// Standard output.
#pragma once

namespace attnres {

// Shows what was printed. Throws std::system_error where it cannot be written.
void flush_output();

}  // namespace attnres
