#include "attnres/parallel/communicator.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "attnres/parallel/thread_communicator.h"
#include "attnres/support/error.h"

namespace attnres::testing::communicator_test {
namespace {

using ::testing::HasSubstr;

std::string error_of(int ranks, const std::function<void(Communicator&)>& work) {
  try {
    run_on_threads(ranks, work);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
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

    world.barrier();
    const auto texts = gather_texts(world, std::string(world.rank(), 'x'));
    EXPECT_THAT(texts, ::testing::ElementsAre("", "x", "xx", "xxx", "xxxx"));
  });
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
  EXPECT_THAT(error_of(2,
                       [](Communicator& world) {
                         world.send(at::zeros({3}), 1 - world.rank(), Channel::backward,
                                    Traffic::open);
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
