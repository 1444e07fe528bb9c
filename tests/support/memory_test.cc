#include "attnres/support/memory.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "attnres/support/error.h"
#include "attnres/support/machine.h"

namespace attnres {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

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

// Bytes of this process that the system may not drop.
int64_t locked_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmLck:")) return std::stoll(line.substr(6)) * 1024;
  }
  return -1;
}

TEST(Memory, WhatIsLockedStaysUntilItIsUnmapped) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "the sanitizer's mlock does nothing";
#endif
  constexpr size_t kBytes = size_t{1} << 15;  // less than what anybody may lock
  const int64_t before = locked_bytes();
  void* const pages =
      ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(pages, MAP_FAILED);
  lock_in_memory(static_cast<char*>(pages) + 100, kBytes - 200);
  EXPECT_EQ(locked_bytes() - before, kBytes);
  ::munmap(pages, kBytes);
  EXPECT_EQ(locked_bytes(), before);
  try {
    lock_in_memory(pages, kBytes);
    FAIL() << "there is no such memory";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), StartsWith("cannot keep 32.0 KiB in memory: Cannot allocate memory"));
    EXPECT_THAT(error.what(), HasSubstr("(ulimit -l)"));
  }
}

// What `f` throws, as memory.h tells of it; empty where it is of something else.
std::string shortage(const std::function<void()>& f, const std::string& where = "") {
  try {
    f();
  } catch (const std::exception& error) {
    return is_out_of_memory(error) ? describe_out_of_memory(error, where) : "";
  }
  return "nothing was thrown";
}

TEST(Memory, ThatRunsOutIsDescribed) {
#if !defined(__SANITIZE_ADDRESS__)  // which ends the process
  EXPECT_EQ(shortage([] { at::empty({int64_t{1} << 50}, at::kByte); }),
            "memory ran out: 1024.0 TiB more were asked for");
#endif
  EXPECT_EQ(shortage([] { throw std::bad_alloc(); }), "memory ran out");
  // As CUDA's allocator says it.
  EXPECT_EQ(shortage(
                [] {
                  TORCH_CHECK_WITH(OutOfMemoryError, false,
                                   "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a "
                                   "total capacity of 79.10 GiB of which 1.00 GiB is free.");
                },
                "cuda:0 (NVIDIA H100)"),
            "memory ran out on cuda:0 (NVIDIA H100): 2.50 GiB more were asked for");
  EXPECT_EQ(shortage([] { TORCH_CHECK(false, "CUBLAS_STATUS_ALLOC_FAILED when calling cublas"); }),
            "memory ran out");
  EXPECT_EQ(shortage([] { TORCH_CHECK(false, "index out of range in self"); }), "");
  EXPECT_EQ(shortage([] { throw std::runtime_error("out of memory, says a text"); }), "");
}

}  // namespace
}  // namespace attnres
