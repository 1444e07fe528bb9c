#include "attnres/support/read_ahead.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "attnres/support/file.h"
#include "attnres/support/mapped_file.h"

namespace attnres::read_ahead_test {
namespace {

constexpr int64_t kPages = 1024, kBytes = 4096 * kPages;

// Of these pages, how many are in memory.
int64_t pages_in_memory(std::string_view map) {
  std::vector<unsigned char> present(map.size() / 4096);
  EXPECT_EQ(::mincore(const_cast<char*>(map.data()), map.size(), present.data()), 0);
  return std::count_if(present.begin(), present.end(), [](unsigned char p) { return p & 1; });
}

// The system lets the pages of this file go; where it keeps files in memory it does not.
void drop(const std::filesystem::path& path) {
  const int file = ::open(path.c_str(), O_RDONLY);
  ::fsync(file);
  ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
  ::close(file);
}

TEST(ReadAhead, AsksForPagesThatAreNotInMemory) {
  const std::filesystem::path path = std::filesystem::path(::testing::TempDir()) / "read_ahead";
  write_file(path, std::string(kBytes, 'x'));
  drop(path);
  const MappedFile file(path);
  if (pages_in_memory(file.whole()) > 0) GTEST_SKIP() << "the file system lets nothing go";
  reads_from_disk();
  EXPECT_FALSE(reads_from_disk());
  read_ahead(file.whole().data() + 5, kBytes - 5);
  // They come without being looked at.
  constexpr int kMostLooks = 1'000'000;
  for (int i = 0; i < kMostLooks && pages_in_memory(file.whole()) < kPages; ++i) {
  }
  EXPECT_EQ(pages_in_memory(file.whole()), kPages);
  EXPECT_TRUE(reads_from_disk());
  EXPECT_FALSE(reads_from_disk());
}

}  // namespace
}  // namespace attnres::read_ahead_test
