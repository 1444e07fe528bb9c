#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

namespace fs = std::filesystem;

// In a folder of its own for temporary files, so that programs may run at once.
int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (argc > 1) return 127;  // a command for the program, started again as /proc/self/exe
  std::string folder = fs::path(::testing::TempDir()) / "attnres-test-XXXXXX";
  if (::mkdtemp(folder.data()) == nullptr) return 1;
  fs::permissions(folder, fs::perms::all);  // some tests are another user's
  ::setenv("TEST_TMPDIR", folder.c_str(), /*overwrite=*/1);
  const int result = RUN_ALL_TESTS();
  std::error_code ignored;
  if (result == 0) fs::remove_all(folder, ignored);
  return result;
}
