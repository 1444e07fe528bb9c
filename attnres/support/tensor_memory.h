// Memory of large tensors, apart from everything else. One heap for all is left in pieces by models
// that keep small tensors between large temporary ones, or larger ones at every layer: what is kept
// takes its bytes from a hole that a temporary one left, the next one fits in no hole, and the
// process grows to more than twice of what it uses. Here a tensor takes the place of one that was
// about as large, and never a part of a larger one's.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <mutex>
#include <queue>
#include <vector>

namespace attnres {

class TensorMemory {
 public:
  static constexpr size_t kLeast = size_t{1} << 16;  // smaller ones are malloc's

  // `bytes` at an address that is a multiple of 64; null where the system has no more. The lowest
  // free place of its size class, so that a step that is repeated finds its memory again.
  void* take(size_t bytes);
  // Gives back what `take` returned; false, and nothing happens, where it did not.
  bool give(void* block);
  // Lets the system have the pages of what is free.
  void trim();

 private:
  // Sizes from more than half of a power of two up to it.
  struct SizeClass {
    size_t stride = 0;  // from a block to the next
    std::priority_queue<char*, std::vector<char*>, std::greater<>> free = {};
    char *next = nullptr, *end = nullptr;  // of the newest region: what was never taken
  };
  // Regions of one size class, by where they end.
  struct Region {
    char* begin = nullptr;
    size_t stride = 0, size_class = 0;
  };

  bool add_region(size_t size_class);

  std::mutex mutex_;
  std::vector<SizeClass> classes_;
  std::map<char*, Region> regions_;
};

// Gives libtorch's tensors on the CPU this memory, those of kLeast bytes and more. Once.
void use_tensor_memory();
// As TensorMemory::trim, where it is used.
void trim_tensor_memory();

}  // namespace attnres
