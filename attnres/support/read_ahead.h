// Pages of mapped files that are asked for before they are looked at: memory that the disk has to
// fill is filled piece by piece otherwise, each when the processor waits for it.
#pragma once

#include <cstddef>

namespace attnres {

// Lets the system begin to read these pages, those that are not in memory, and returns at once.
void read_ahead(const void* begin, size_t bytes);

// Whether this process has read from the disk since it last asked: where it has, memory is too
// small for all that it maps, or it has just begun. Any thread may ask. About a microsecond.
bool reads_from_disk();

}  // namespace attnres
