// The fields of a request, and how many large ones are held at once.
#include "attnres/serve/json_fields.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <latch>
#include <memory>
#include <string>

#include "attnres/serve/api_error.h"

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

}  // namespace
}  // namespace attnres::json_fields_test
