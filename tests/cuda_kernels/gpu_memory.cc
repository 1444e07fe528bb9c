// Has all memory of a program where the GPU reads and writes it too, on the host: the cases have
// their rows in vectors.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <utility>

namespace {

// Pieces are powers of two, kept for the next of their size.
class SharedMemory {
 public:
  void* take(size_t bytes) {
    const int size = std::bit_width(std::max(bytes, kSmallest) - 1);
    auto& unused = unused_[static_cast<size_t>(size)];
    if (unused != nullptr) return std::exchange(unused, *static_cast<void**>(unused));
    return piece(size_t{1} << size);
  }
  void give_back(void* memory, size_t bytes) {
    const int size = std::bit_width(std::max(bytes, kSmallest) - 1);
    *static_cast<void**>(memory) = std::exchange(unused_[static_cast<size_t>(size)], memory);
  }

 private:
  static constexpr size_t kSmallest = 256, kBlock = size_t{1} << 26;

  void* piece(size_t bytes) {
    if (left_ < bytes) {
      left_ = std::max(kBlock, bytes);
      void* block = nullptr;
      if (const cudaError_t status = cudaMallocHost(&block, left_); status != cudaSuccess) {
        std::fprintf(stderr, "no memory that a GPU can read: %s\n", cudaGetErrorString(status));
        std::_Exit(1);
      }
      next_ = static_cast<std::byte*>(block);
    }
    left_ -= bytes;
    return std::exchange(next_, next_ + bytes);
  }

  std::array<void*, 64> unused_{};
  std::byte* next_ = nullptr;
  size_t left_ = 0;
};

SharedMemory& shared_memory() {
  static SharedMemory memory;
  return memory;
}

}  // namespace

// The size stands before what is given, for those who give it back without.
void* operator new(size_t bytes) {
  auto* piece = static_cast<std::byte*>(shared_memory().take(bytes + 16));
  *reinterpret_cast<size_t*>(piece) = bytes + 16;
  return piece + 16;
}
void operator delete(void* memory) noexcept {
  if (memory == nullptr) return;
  auto* piece = static_cast<std::byte*>(memory) - 16;
  shared_memory().give_back(piece, *reinterpret_cast<size_t*>(piece));
}
void operator delete(void* memory, size_t) noexcept {
  operator delete(memory);
}
