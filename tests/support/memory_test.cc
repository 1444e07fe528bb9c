#include "attnres/support/memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <vector>

#include "attnres/support/machine.h"

namespace attnres {
namespace {

std::uintptr_t end_of_heap() {
  return reinterpret_cast<std::uintptr_t>(sbrk(0));
}

// Larger than an int counts, since a step of a model of any use frees that much at once.
TEST(Memory, AFreedBlockOfAnySizeStaysWithTheHeap) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "the sanitizer's malloc keeps freed memory by itself";
#endif
  keep_freed_memory();
  constexpr size_t kBytes = size_t{3} << 30;
  void* const block = std::malloc(kBytes);  // never written: it takes addresses only
  const auto end = reinterpret_cast<std::uintptr_t>(block) + kBytes;
  ASSERT_NE(block, nullptr);
  EXPECT_GE(end_of_heap(), end);
  std::free(block);
  EXPECT_GE(end_of_heap(), end);
}

TEST(Memory, IsGivenBackWhenAsked) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "the sanitizer's malloc keeps freed memory by itself";
#endif
  keep_freed_memory();
  constexpr int64_t kBytes = int64_t{64} << 20;
  const int64_t most = kBytes / 2, before = resident_bytes();
  std::vector<char> block(kBytes, 1), last(4096);  // the heap does not end with the block
  EXPECT_GT(resident_bytes() - before, most);
  std::vector<char>().swap(block);
  EXPECT_GT(resident_bytes() - before, most);
  give_back_freed_memory();
  EXPECT_LT(resident_bytes() - before, most);
}

}  // namespace
}  // namespace attnres
