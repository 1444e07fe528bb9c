#include "attnres/support/tensor_memory.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <set>
#include <vector>

#include "attnres/support/machine.h"
#include "attnres/support/random.h"

namespace attnres::tensor_memory_test {
namespace {

constexpr size_t kKiB = 1 << 10, kMiB = 1 << 20;

TEST(TensorMemory, GivesThePlaceOfOneAboutAsLarge) {
  TensorMemory memory;
  void* const first = memory.take(700 * kKiB);
  void* const second = memory.take(900 * kKiB);
  EXPECT_NE(first, second);
  EXPECT_TRUE(memory.give(first));
  EXPECT_EQ(memory.take(1000 * kKiB), first);
  EXPECT_TRUE(memory.give(second));
  // Neither a smaller nor a larger one takes it.
  EXPECT_NE(memory.take(100 * kKiB), second);
  EXPECT_NE(memory.take(1100 * kKiB), second);
  EXPECT_EQ(memory.take(513 * kKiB), second);
}

// What mechanisms do that weigh every source by itself: a small tensor stays behind every large
// temporary one. In a heap that both share no hole of a large one is left whole.
TEST(TensorMemory, KeepsSmallOnesOutOfThePlacesOfLargeOnes) {
  TensorMemory memory;
  std::set<void*> places;
  std::vector<void*> kept;
  for (int source = 0; source < 1000; ++source) {
    void* const temporary = memory.take(kMiB);
    kept.push_back(memory.take(96 * kKiB));
    EXPECT_TRUE(memory.give(temporary));
    places.insert(temporary);
  }
  EXPECT_EQ(places.size(), 1u);
  EXPECT_EQ(std::set<void*>(kept.begin(), kept.end()).size(), kept.size());
}

// As at the sites of a mechanism that reads all before it: what stays and what goes grow together.
TEST(TensorMemory, OfGrowingTemporariesIsThatOfAFew) {
  TensorMemory memory;
  std::set<void*> places;
  for (size_t site = 1; site <= 64; ++site) {
    void* const temporary = memory.take(site * 256 * kKiB);
    memory.take(site * 256 * kKiB);
    EXPECT_TRUE(memory.give(temporary));
    places.insert(temporary);
  }
  EXPECT_LE(places.size(), 7u);  // from 256 KiB to 16 MiB, one for each power of two
}

// Random sizes and orders: every block keeps its own bytes, whatever others do.
TEST(TensorMemory, BlocksDoNotOverlap) {
  TensorMemory memory;
  const RandomStream random(/*seed=*/1, "blocks");
  struct Block {
    unsigned char* begin;
    size_t bytes;
    unsigned char value;
  };
  std::vector<Block> blocks;
  for (int64_t i = 0; i < 600; ++i) {
    if (blocks.size() > 40 || (!blocks.empty() && random.below(3, 2 * i) == 0)) {
      const size_t which = random.below(blocks.size(), 2 * i + 1);
      const Block block = blocks[which];
      for (const size_t at : {size_t{0}, block.bytes / 2, block.bytes - 1}) {
        EXPECT_EQ(block.begin[at], block.value);
      }
      EXPECT_TRUE(memory.give(block.begin));
      blocks.erase(blocks.begin() + static_cast<int64_t>(which));
      continue;
    }
    const size_t bytes = TensorMemory::kLeast + random.below(3 * kMiB, 2 * i + 1);
    auto* const begin = static_cast<unsigned char*>(memory.take(bytes));
    ASSERT_NE(begin, nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(begin) % 64, 0u);
    const auto value = static_cast<unsigned char>(i % 251);
    std::memset(begin, value, bytes);
    blocks.push_back({begin, bytes, value});
  }
}

// Numbers of one token in many sources of a page each must not lie in the same lines of a cache.
TEST(TensorMemory, BlocksBeginAtOtherPlacesOfAPage) {
  TensorMemory memory;
  std::set<std::uintptr_t> places;
  for (int i = 0; i < 16; ++i) {
    places.insert(reinterpret_cast<std::uintptr_t>(memory.take(kMiB)) % 4096);
  }
  EXPECT_EQ(places.size(), 16u);
}

TEST(TensorMemory, KnowsItsOwn) {
  TensorMemory memory, other;
  int on_stack = 0;
  EXPECT_FALSE(memory.give(&on_stack));
  EXPECT_FALSE(memory.give(other.take(kMiB)));
  // Larger than a region.
  void* const large = memory.take(size_t{3} << 29);
  EXPECT_NE(large, nullptr);
  EXPECT_TRUE(memory.give(large));
  EXPECT_EQ(memory.take(size_t{3} << 29), large);
  EXPECT_EQ(memory.take(size_t{1} << 52), nullptr);
}

TEST(TensorMemory, IsGivenBackWhenTrimmed) {
  TensorMemory memory;
  constexpr size_t kBytes = 64 * kMiB;
  const int64_t most = kBytes / 2, before = resident_bytes();
  void *const block = memory.take(kBytes), *const other = memory.take(kBytes);
  std::memset(block, 1, kBytes);
  std::memset(other, 2, kBytes);
  EXPECT_TRUE(memory.give(block));
  EXPECT_GT(resident_bytes() - before, 2 * most);
  memory.trim();
  EXPECT_LT(resident_bytes() - before, 3 * most);
  // What is in use stays.
  EXPECT_EQ(static_cast<char*>(other)[kBytes - 1], 2);
}

}  // namespace
}  // namespace attnres::tensor_memory_test
