// The fields of a request, and how many large ones are held at once.
#include "attnres/serve/json_fields.h"

#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <future>
#include <latch>
#include <memory>
#include <string>

#include "attnres/serve/api_error.h"
#include "attnres/support/json.h"

namespace attnres::json_fields_test {
namespace {

std::string body_of(size_t bytes) {
  return "{\"a\": \"" + std::string(bytes, 'a') + "\"}";
}

// Parsed, a body takes many times its bytes: many clients at once would take it as often.
TEST(JsonFields, OfLargeBodiesOneIsHeldAtATime) {
  const std::string large = body_of(2 << 20);
  auto held = std::make_unique<JsonFields>(large);
  std::atomic<bool> released = false;
  std::latch begun(1);
  auto another = std::async(std::launch::async, [&] {
    begun.count_down();
    const JsonFields fields(large);
    return released.load();
  });
  begun.wait();
  // Small ones do not wait; and these take longer than the other would by itself.
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(JsonFields(body_of(900'000)).text("a", "").size(), 900'000);
  }
  released = true;
  held.reset();
  EXPECT_TRUE(another.get());
}

TEST(JsonFields, ALargeBodyThatIsRefusedIsNotHeld) {
  for (int i = 0; i < 2; ++i) EXPECT_THROW(JsonFields("[" + body_of(2 << 20)), ApiError);
}

// So that it is forgotten where memory is short.
TEST(JsonFields, ForgetALargeBodyWithoutMemory) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "the sanitizer's own memory has no limit that could be set";
#endif
  // What is freed goes back to the system, so that the list leaves no hole where it grew; and it is
  // larger than what glibc has reserved for other threads.
  ::mallopt(M_MMAP_THRESHOLD, 1 << 20);
  std::string body = "{\"a\": [0";
  for (int i = 1; i < 1 << 22; ++i) body += ",0";
  body += "]}";
  // Nothing more can be had from the system.
  const auto take_no_more = [] {
    int64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const rlim_t bytes = pages * ::sysconf(_SC_PAGESIZE);
    const rlimit limit = {bytes, RLIM_INFINITY};
    ::setrlimit(RLIMIT_AS, &limit);
  };
  const auto forget = [&](auto parsed) {
    take_no_more();
    parsed.reset();
    std::_Exit(0);
  };
  EXPECT_EXIT(forget(std::make_unique<JsonFields>(body)), ::testing::ExitedWithCode(0), "");
  EXPECT_DEATH(forget(std::make_unique<Json>(parse_json(body, "control"))), "");
}

}  // namespace
}  // namespace attnres::json_fields_test
