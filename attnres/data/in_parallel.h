// Independent pieces of work on all threads.
#pragma once

#include <cstddef>
#include <functional>

namespace attnres {

// Calls work(0), .., work(count - 1): the threads take them in turn. Throws what the first of those
// that failed threw, when all have ended.
void in_parallel(size_t count, const std::function<void(size_t)>& work);

}  // namespace attnres
