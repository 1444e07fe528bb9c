#include "attnres/parallel/communicator.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "attnres/support/error.h"
#include "tests/parallel/thread_communicator.h"
#include "tests/text/test_files.h"

namespace attnres::testing::communicator_test {
namespace {

using ::testing::HasSubstr;

std::string error_of(int ranks, const std::function<void(Communicator&)>& work) {
  return message_of<Error>([&] { run_on_threads(ranks, work); });
}

TEST(ThreadCommunicator, DeliversInOrderOfEachChannel) {
  run_on_threads(3, [](Communicator& world) {
    const int next = (world.rank() + 1) % 3, before = (world.rank() + 2) % 3;
    const at::Tensor a = at::zeros({2}), b = at::zeros({2}), c = at::zeros({2});
    auto first = world.receive(a, before, Channel::forward);
    auto second = world.receive(b, before, Channel::forward);
    world.send(at::full({2}, 7.0f), next, Channel::backward, Traffic::open)->wait();
    world.send(at::full({2}, 1.0f), next, Channel::forward, Traffic::open)->wait();
    world.send(at::full({2}, 2.0f), next, Channel::forward, Traffic::sealed)->wait();
    second->wait();
    first->wait();
    EXPECT_TRUE(first->is_done());
    world.receive(c, before, Channel::backward)->wait();
    EXPECT_EQ(a[0].item<float>(), 1);
    EXPECT_EQ(b[0].item<float>(), 2);
    EXPECT_EQ(c[0].item<float>(), 7);
    EXPECT_EQ(world.bytes_sent(Traffic::open), 16);
    EXPECT_EQ(world.bytes_sent(Traffic::sealed), 8);
    world.require_nothing_left();
  });
}

TEST(ThreadCommunicator, AddsUpBroadcastsAndSplits) {
  run_on_threads(5, [](Communicator& world) {
    const at::Tensor sum = at::full({3}, world.rank(), at::kDouble);
    world.all_reduce_sum(sum, Traffic::number);
    EXPECT_TRUE(sum.equal(at::full({3}, 10, at::kDouble)));
    const at::Tensor value = at::full({1}, world.rank(), at::kLong);
    world.broadcast(value, 3, Traffic::parameter);
    EXPECT_EQ(value.item<int64_t>(), 3);
    EXPECT_EQ(world.bytes_sent(Traffic::parameter), world.rank() == 3 ? 8 : 0);

    const auto odd = world.split(world.rank() % 2);
    EXPECT_EQ(odd->size(), world.rank() % 2 == 1 ? 2 : 3);
    EXPECT_EQ(odd->rank(), world.rank() / 2);
    const at::Tensor part = at::full({1}, world.rank(), at::kLong);
    odd->all_reduce_sum(part, Traffic::number);
    EXPECT_EQ(part.item<int64_t>(), world.rank() % 2 == 1 ? 4 : 6);
    EXPECT_EQ(world.split(world.rank() == 2 ? 0 : -1) == nullptr, world.rank() != 2);

    double halves[] = {0.5, world.rank() + 0.0};
    int64_t counts[] = {world.rank()}, of_root[] = {world.rank(), 2 * world.rank()};
    sum_numbers(world, halves);
    sum_numbers(world, counts);
    broadcast_numbers(world, of_root, 3);
    EXPECT_THAT(halves, ::testing::ElementsAre(2.5, 10));
    EXPECT_THAT(counts, ::testing::ElementsAre(10));
    EXPECT_THAT(of_root, ::testing::ElementsAre(3, 6));

    world.barrier();
    const auto texts = gather_texts(world, std::string(world.rank(), 'x'));
    EXPECT_THAT(texts, ::testing::ElementsAre("", "x", "xx", "xxx", "xxxx"));
  });
}

// What all do together is begun in one order, and may be waited for in another.
TEST(ThreadCommunicator, DoesTogetherWhatWasBegun) {
  run_on_threads(3, [](Communicator& world) {
    const at::Tensor sum = at::full({2}, world.rank() + 1.0f), at_root = sum.clone(),
                     value = sum.clone();
    const auto all = world.begin_all_reduce_sum(sum, Traffic::number);
    const auto reduced = world.begin_reduce_sum(at_root, 1, Traffic::parameter_gradient);
    const auto broadcast = world.begin_broadcast(value, 2, Traffic::parameter);
    for (const auto* begun : {&broadcast, &all, &reduced}) (*begun)->wait();
    EXPECT_TRUE(all->is_done());
    EXPECT_EQ(sum[0].item<float>(), 6);
    EXPECT_EQ(value[0].item<float>(), 3);
    if (world.rank() == 1) {
      EXPECT_EQ(at_root[0].item<float>(), 6);
    }
    EXPECT_EQ(world.bytes_sent(Traffic::parameter_gradient), 8);
    EXPECT_EQ(world.bytes_sent(Traffic::parameter), world.rank() == 2 ? 8 : 0);
    world.require_nothing_left();
  });
}

TEST(ThreadCommunicator, NoticesWhatNobodyWaitsFor) {
  run_on_threads(2, [](Communicator& world) {
    const auto sum = world.begin_all_reduce_sum(at::zeros({2}), Traffic::number);
    EXPECT_THAT(message_of<Error>([&] { world.require_nothing_left(); }),
                HasSubstr(fmt::format("rank {} has begun 1 messages or sums", world.rank())));
    sum->wait();
    world.require_nothing_left();
  });
}

// Rank 1 of a group of two, which is rank 2 of all, neither ends nor waits until the others have
// given up.
TEST(ThreadCommunicator, WaitsNoLongerThanTheLimit) {
  std::atomic<int> gave_up = 0;
  run_on_threads(3, [&](Communicator& world) {
    world.set_time_limit(0.01);
    const auto pair = world.split(world.rank() == 1 ? 1 : 0);
    const auto expect = [&](const std::string& error, const std::function<void()>& work) {
      EXPECT_THAT(message_of<Error>(work), HasSubstr(error));
    };
    const at::Tensor numbers = at::zeros({2}), late = at::zeros({2});
    std::unique_ptr<PendingMessage> expected, sum;
    if (world.rank() == 0) {
      expected = pair->receive(numbers, 1, Channel::forward);
      expect("rank 0 has waited 0.01 s for the forward of micro-batch 3 from rank 2",
             [&] { expected->wait("the forward of micro-batch 3"); });
      sum = pair->begin_all_reduce_sum(late, Traffic::number);
      expect("rank 0 has waited 0.01 s for a sum of ranks 0, 2, to which one has not come",
             [&] { sum->wait("a sum"); });
    }
    ++gave_up;
    while (gave_up < 3) std::this_thread::yield();
    // A limit does not end what is waited for.
    if (world.rank() == 1) return;
    pair->set_time_limit(60);
    if (world.rank() == 2) {
      pair->send(at::ones({2}), 0, Channel::forward, Traffic::open)->wait();
      pair->all_reduce_sum(at::ones({2}), Traffic::number);
      return;
    }
    expected->wait();
    sum->wait();
    EXPECT_EQ(numbers[0].item<float>(), 1);
    EXPECT_EQ(late[0].item<float>(), 1);
  });
}

// Who waits for an order may wait for as long as there is none; but not where another rank fails.
TEST(ThreadCommunicator, WaitsHoweverLong) {
  std::atomic<bool> gave_up = false;
  run_on_threads(2, [&](Communicator& world) {
    world.set_time_limit(0.01);
    const at::Tensor order = at::zeros({1});
    if (world.rank() == 0) {
      while (!gave_up) std::this_thread::yield();
      world.broadcast(at::ones({1}), 0, Traffic::number);
      return;
    }
    const auto heard = world.begin_broadcast(order, 0, Traffic::number);
    EXPECT_THAT(message_of<Error>([&] { heard->wait(); }), HasSubstr("has waited 0.01 s"));
    gave_up = true;
    heard->wait_however_long();
    EXPECT_EQ(order.item<float>(), 1);
  });
  EXPECT_THAT(message_of<Error>([] {
                run_on_threads(2, [](Communicator& world) {
                  if (world.rank() == 0) fail("a disk is full");
                  world.begin_broadcast(at::zeros({1}), 0, Traffic::number)->wait_however_long();
                });
              }),
              HasSubstr("a disk is full"));
}

// No rank waits for ever where something goes wrong.
TEST(ThreadCommunicator, EndsAllWithTheFirstError) {
  const auto wait = [](Communicator& world, int from) {
    world.receive(at::zeros({1}), from, Channel::forward)->wait();
  };
  EXPECT_EQ(error_of(3,
                     [&](Communicator& world) {
                       if (world.rank() == 1) fail("a disk is full");
                       wait(world, 1);
                     }),
            "a disk is full");
  EXPECT_EQ(error_of(2,
                     [&](Communicator& world) {
                       if (world.rank() == 1) world.abort("enough");
                       wait(world, 1);
                     }),
            "enough");
  EXPECT_THAT(error_of(2, [&](Communicator& world) { wait(world, 1 - world.rank()); }),
              HasSubstr("all ranks wait for messages that nobody sends"));
  EXPECT_THAT(error_of(2,
                       [&](Communicator& world) {
                         if (world.rank() == 0) wait(world, 1);
                       }),
              HasSubstr("all ranks wait for messages that nobody sends"));
}

TEST(ThreadCommunicator, NoticesMessagesThatDoNotFit) {
  EXPECT_THAT(error_of(2,
                       [](Communicator& world) {
                         if (world.rank() == 0) {
                           world.send(at::zeros({3}), 1, Channel::forward, Traffic::open);
                         } else {
                           world.receive(at::zeros({2}), 0, Channel::forward)->wait();
                         }
                       }),
              HasSubstr("rank 1 expected 8 bytes of rank 0, and got 12"));
  EXPECT_THAT(
      error_of(
          2,
          [](Communicator& world) {
            world.send(at::zeros({3}), 1 - world.rank(), Channel::backward, Traffic::open)->wait();
            world.barrier();
            EXPECT_THROW(world.require_nothing_left(), Error);
          }),
      HasSubstr("2 messages were never received"));
}

TEST(Communicator, RefusesWhatItCannotSend) {
  run_on_threads(1, [](Communicator& world) {
    EXPECT_THROW(world.send(at::zeros({2, 3}).t(), 0, Channel::forward, Traffic::open), Error);
    EXPECT_THROW(world.send(at::Tensor(), 0, Channel::forward, Traffic::open), Error);
    EXPECT_THROW(world.send(at::zeros({2}), 1, Channel::forward, Traffic::open), Error);
    EXPECT_THROW(world.receive(at::zeros({2}), -1, Channel::forward), Error);
    EXPECT_THROW(world.all_reduce_sum(at::zeros({2}, at::kHalf), Traffic::number), Error);
  });
}

}  // namespace
}  // namespace attnres::testing::communicator_test
