#include "attnres/train/run_folder/event_file.h"

#include <gmock/gmock.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "tests/text/test_files.h"
#include "tests/train/event_records.h"

namespace attnres::testing::event_file_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// RFC 3720, B.4, and the check value that catalogues of CRCs give.
TEST(EventFile, ComputesCastagnolisCheck) {
  EXPECT_EQ(crc32c("123456789"), 0xE3069283);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AA);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62A8AB43);
}

// By the formats' definitions, byte by byte.
TEST(EventFile, WritesRecordsOfEvents) {
  const fs::path path = fresh_folder("events") / "events";
  {
    EventFile file(path, 2.0);
    file.add(300, 2.5, {{"a/b", 1.0}, {"c", -2.0}});
  }
  const std::vector<std::string> messages = event_records(path);
  ASSERT_EQ(messages.size(), 2U);
  const auto bytes = [](const char* text, size_t count) { return std::string(text, count); };
  EXPECT_EQ(messages[0], bytes("\x09\0\0\0\0\0\0\0\x40", 9) + "\x1a\x0d" + "brain.Event:2");
  EXPECT_EQ(messages[1], bytes("\x09\0\0\0\0\0\0\x04\x40", 9) + "\x10\xac\x02" + "\x2a\x16" +
                             bytes("\x0a\x0a\x0a\x03"
                                   "a/b\x15\0\0\x80\x3f",
                                   12) +
                             bytes("\x0a\x08\x0a\x01"
                                   "c\x15\0\0\0\xc0",
                                   10));
}

TEST(EventFile, SaysWhereItCannotWrite) {
  try {
    EventFile("/nowhere/events", 0);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("/nowhere/events: cannot open"));
  }
}

}  // namespace
}  // namespace attnres::testing::event_file_test
