#include "attnres/train/run_folder/line_log.h"

#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <nlohmann/json.hpp>

#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "tests/text/test_files.h"

namespace attnres::line_log_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class LineLogTest : public ::testing::Test {
 protected:
  const fs::path path_ = fresh_folder("log") / "log.jsonl";
};

TEST_F(LineLogTest, AppendsLines) {
  LineLog log(path_, 0);
  log.append({{"step", 1}});
  log.append({{"step", 2}, {"text", "two\nlines"}});
  log.sync();
  EXPECT_EQ(read_file(path_), "{\"step\":1}\n{\"step\":2,\"text\":\"two\\nlines\"}\n");
  EXPECT_EQ(log.bytes(), static_cast<int64_t>(read_file(path_).size()));
}

TEST_F(LineLogTest, GoesOnWhereACheckpointWasMade) {
  write_text(path_, "{\"step\":1}\n{\"step\":2}\n{\"st");
  LineLog log(path_, 11);
  EXPECT_EQ(read_file(path_), "{\"step\":1}\n");
  log.append({{"step", 2}});
  EXPECT_EQ(read_file(path_), "{\"step\":1}\n{\"step\":2}\n");
}

TEST_F(LineLogTest, RefusesAFileThatLostLines) {
  write_text(path_, "{\"step\":1}\n");
  EXPECT_THAT(message_of<Error>([&] { LineLog(path_, 12); }),
              HasSubstr("log.jsonl: expected at least 12 bytes, as the checkpoint says, found 11"));
  EXPECT_EQ(read_file(path_), "{\"step\":1}\n");
  EXPECT_THAT(message_of<Error>([&] { LineLog("/nowhere/log", 0); }), HasSubstr("/nowhere/log"));
}

TEST_F(LineLogTest, WritesTextThatIsNotUtf8) {
  LineLog(path_, 0).append({{"text", "a\xff"}});
  EXPECT_EQ(read_file(path_), "{\"text\":\"a\xef\xbf\xbd\"}\n");
}

// In a process of its own, whose files may not grow past 20 bytes.
TEST_F(LineLogTest, LeavesNoPartOfALineOnAFullDisk) {
  const pid_t child = ::fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {.rlim_cur = 20, .rlim_max = RLIM_INFINITY};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    int failures = 0;
    LineLog log(path_, 0);
    for (int step = 1; step <= 3; ++step) {
      try {
        log.append({{"step", step}});
      } catch (const Error&) {
        ++failures;
      }
    }
    ::_exit(log.bytes() == 11 ? failures : 100);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 2);
  EXPECT_EQ(read_file(path_), "{\"step\":1}\n");
}

}  // namespace
}  // namespace attnres::line_log_test
