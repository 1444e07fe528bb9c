// The thread that computes: turns, a full queue, clients that go, and its end.
#include "attnres/serve/model_loop.h"

#include <gtest/gtest.h>

#include <optional>
#include <semaphore>

#include "attnres/serve/api_error.h"
#include "attnres/serve/fair_queue.h"
#include "tests/serve/served.h"

namespace attnres::model_loop_test {
namespace {

using Time = Exchange::Time;
const Time kNever = Time::max();

TextRequest request_of(int64_t tokens) {
  return {.ids = {65, 66, 67},
          .generation = {.sampling = {.logit_bias = {{0, -100}}}, .max_tokens = tokens}};
}

// Waits for the end.
TextUpdate last_update(Exchange& exchange) {
  while (true) {
    auto heard = exchange.next(kNever);
    if (heard->update.stopped) return heard->update;
  }
}

TEST(FairQueue, ClientsTakeTurns) {
  FairQueue<std::string> queue;
  for (const char* item : {"a1", "a2", "a3", "a4"}) queue.push("a", item);
  queue.push("b", "b1");
  queue.push("c", "c1");
  queue.push("c", "c2");
  std::string order;
  for (int i = 0; i < 4; ++i) order += queue.pop();
  queue.push("b", "b2");
  EXPECT_EQ(queue.take_if([](const std::string& item) { return item == "a3"; }).size(), 1);
  while (queue.size() > 0) order += queue.pop();
  EXPECT_EQ(order, "a1b1c1a2b2c2a4");
}

class ModelLoopTest : public ::testing::Test {
 protected:
  TextEngine engine_{testing::kModel, {.engine = {.sequences = 1}}};
};

TEST_F(ModelLoopTest, AnswersManyThatAskAtOnce) {
  ModelLoop loop(engine_, 1, 100);
  std::vector<std::shared_ptr<Exchange>> exchanges;
  for (int i = 0; i < 20; ++i) {
    exchanges.push_back(loop.submit({request_of(3), request_of(2)}, std::to_string(i % 3), {}));
  }
  for (const auto& exchange : exchanges) {
    int tokens = 0;
    for (int ended = 0; ended < 2;) {
      const auto heard = exchange->next(kNever);
      tokens += heard->update.token.has_value();
      ended += heard->update.stopped.has_value();
    }
    EXPECT_EQ(tokens, 5);
  }
  EXPECT_EQ(loop.status().finished, 40);
}

// The loop asks whether a client has gone before each step: there it is held here.
TEST_F(ModelLoopTest, RefusesWhatTheQueueHasNoRoomFor) {
  ModelLoop loop(engine_, 1, 2);
  std::counting_semaphore<1000> asked(0), answer(0);
  int times = 0;
  const auto first = loop.submit({request_of(200)}, "a", [&] {
    if (++times < 2) return false;  // while it waits
    asked.release();
    answer.acquire();
    return false;
  });
  asked.acquire();
  const auto second = loop.submit({request_of(1), request_of(1)}, "a", {});
  try {
    loop.submit({request_of(1)}, "b", {});
    ADD_FAILURE() << "taken";
  } catch (const ApiError& e) {
    EXPECT_EQ(e.status, 429);
    EXPECT_EQ(e.code, "queue_full");
  }
  EXPECT_EQ(loop.status().waiting, 2);
  answer.release(1000 - 1);
  EXPECT_EQ(last_update(*first).stopped, StopReason::max_tokens);
  EXPECT_EQ(last_update(*second).stopped, StopReason::max_tokens);
  EXPECT_NO_THROW(loop.submit({request_of(1)}, "b", {}));
}

// Not one step is computed after that.
TEST_F(ModelLoopTest, StopsForAClientThatHasGone) {
  ModelLoop loop(engine_, 1, 10);
  int steps = 0;
  const auto gone = loop.submit({request_of(200)}, "a", [&] { return ++steps > 11; });
  const auto other = loop.submit({request_of(1)}, "a", {});
  last_update(*other);
  EXPECT_EQ(steps, 12);
  int tokens = 0;
  std::optional<Exchange::Heard> heard = gone->next(Time::min());
  for (; heard && heard->update.token; heard = gone->next(Time::min())) ++tokens;
  EXPECT_EQ(tokens, 11);  // it was asked before each step
  ASSERT_TRUE(heard.has_value());
  EXPECT_EQ(heard->update.stopped, StopReason::failed);
}

TEST_F(ModelLoopTest, FailsForAClientThatGoesWhileItWaits) {
  ModelLoop loop(engine_, 1, 10);
  const auto running = loop.submit({request_of(200)}, "a", {});
  const auto waiting = loop.submit({request_of(200)}, "a", [] { return true; });
  EXPECT_EQ(last_update(*waiting).stopped, StopReason::failed);
  EXPECT_EQ(last_update(*running).stopped, StopReason::max_tokens);
}

TEST_F(ModelLoopTest, ForgetsWhatIsCancelled) {
  ModelLoop loop(engine_, 1, 10);
  const auto running = loop.submit({request_of(200)}, "a", {});
  const auto waiting = loop.submit({request_of(200)}, "a", {});
  const auto last = loop.submit({request_of(1)}, "b", {});
  running->next(kNever);
  running->cancel();
  waiting->cancel();
  EXPECT_EQ(last_update(*last).stopped, StopReason::max_tokens);
  EXPECT_EQ(last_update(*waiting).stopped, StopReason::failed);
  EXPECT_LT(loop.status().engine.generated_tokens, 200);
}

TEST_F(ModelLoopTest, FailsWhatRunsWhenItEnds) {
  ModelLoop loop(engine_, 1, 10);
  const auto running = loop.submit({request_of(200)}, "a", {});
  const auto waiting = loop.submit({request_of(200)}, "a", {});
  running->next(kNever);
  loop.end("over");
  for (const auto& exchange : {running, waiting}) {
    const TextUpdate update = last_update(*exchange);
    if (exchange == running && update.stopped == StopReason::max_tokens) continue;  // it was faster
    EXPECT_EQ(update.stopped, StopReason::failed);
    EXPECT_EQ(update.error, "over");
  }
  EXPECT_THROW(loop.submit({request_of(1)}, "a", {}), ApiError);
}

}  // namespace
}  // namespace attnres::model_loop_test
