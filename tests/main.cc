#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

// In a folder of its own for temporary files, so that programs may run at once.
int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  std::string folder = ::testing::TempDir() + "/attnres-test-XXXXXX";
  if (::mkdtemp(folder.data()) == nullptr) return 1;
  ::setenv("TEST_TMPDIR", folder.c_str(), /*overwrite=*/1);
  const int result = RUN_ALL_TESTS();
  std::error_code ignored;
  if (result == 0) std::filesystem::remove_all(folder, ignored);
  return result;
}
