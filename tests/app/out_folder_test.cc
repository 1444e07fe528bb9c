// Folders that commands write do not lie among the texts that they read.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <iterator>
#include <string>

#include "tests/app/program.h"
#include "tests/text/test_files.h"

namespace attnres::testing::out_folder_test {
namespace {

namespace fs = std::filesystem;

using ::testing::HasSubstr;

TEST(OutFolder, IsRefusedAmongTheTexts) {
  const fs::path text = fresh_folder("text");
  write_text(text / "book.txt", "what is read");
  const std::string data = " --data " + text.string() + " --out ";
  for (const char* command :
       {"train --recipe tiny-residual", "compare --smoke --mechanisms residual,mhc",
        "compare --dry-run", "study ablation --smoke", "tokenize --model tiny-shakespeare"}) {
    for (const fs::path& out : {text, text / "within" / "it"}) {
      const Result result = run_program(command + data + out.string());
      EXPECT_EQ(result.exit_code, 2) << command;
      EXPECT_THAT(result.err, HasSubstr("where text is read; choose another --out")) << command;
    }
    EXPECT_EQ(std::distance(fs::directory_iterator(text), fs::directory_iterator()), 1) << command;
  }
  // Beside them, with a name that begins alike.
  const fs::path beside = text.string() + "-tokens";
  fs::remove_all(beside);
  EXPECT_EQ(run_program("tokenize --model tiny-shakespeare" + data + beside.string()).exit_code, 0);
}

}  // namespace
}  // namespace attnres::testing::out_folder_test
