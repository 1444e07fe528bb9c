#include "attnres/parallel/thread_communicator.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <utility>

#include "attnres/support/error.h"

namespace attnres {
namespace {

// A communicator's name, the ranks of sender and receiver in it, and the channel.
using Mailbox = std::tuple<std::string, int, int, Channel>;

// Where all threads meet. Messages lie here from their sending on.
class Hub {
 public:
  explicit Hub(int threads) : waiting_(threads), ended_(threads) {}

  void put(const Mailbox& mailbox, const at::Tensor& tensor) {
    const std::lock_guard lock(mutex_);
    require_going();
    Messages& messages = messages_[mailbox];
    messages.there.emplace(messages.sent++, tensor.clone());
    changed_.notify_all();
  }
  // The number of the message that a receiver who asks now will get.
  int64_t expect(const Mailbox& mailbox) {
    const std::lock_guard lock(mutex_);
    return messages_[mailbox].expected++;
  }
  // This message, once it is there.
  at::Tensor take(const Mailbox& mailbox, int64_t number, int thread) {
    std::unique_lock lock(mutex_);
    auto& there = messages_[mailbox].there;
    while (!there.contains(number)) {
      require_going();
      waiting_[thread] = [&] { return there.contains(number); };
      fail_if_all_wait();
      if (failure_.empty()) changed_.wait(lock);
      waiting_[thread] = nullptr;
    }
    return there.extract(number).mapped();
  }
  bool has(const Mailbox& mailbox, int64_t number) {
    const std::lock_guard lock(mutex_);
    require_going();
    return messages_[mailbox].there.contains(number);
  }
  // Messages that were sent, and not received: to all, or to this rank of a communicator.
  size_t left(const std::string& name = "", int rank = -1) {
    const std::lock_guard lock(mutex_);
    size_t left = 0;
    for (const auto& [mailbox, messages] : messages_) {
      if (rank >= 0 && (std::get<0>(mailbox) != name || std::get<2>(mailbox) != rank)) continue;
      left += messages.there.size();
    }
    return left;
  }
  // Everyone else throws Error from now on.
  void fail(const std::string& message) {
    const std::lock_guard lock(mutex_);
    if (failure_.empty()) failure_ = message;
    changed_.notify_all();
  }
  void end(int thread) {
    const std::lock_guard lock(mutex_);
    ended_[thread] = true;
    fail_if_all_wait();
  }

 private:
  struct Messages {
    int64_t sent = 0, expected = 0;
    std::map<int64_t, at::Tensor> there;
  };

  void require_going() const { require(failure_.empty(), "another rank has failed: {}", failure_); }
  void fail_if_all_wait() {
    bool some_wait = false;
    for (size_t thread = 0; thread < ended_.size(); ++thread) {
      if (ended_[thread]) continue;
      if (!waiting_[thread] || waiting_[thread]()) return;
      some_wait = true;
    }
    if (!some_wait || !failure_.empty()) return;
    failure_ = "all ranks wait for messages that nobody sends";
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Mailbox, Messages> messages_;
  std::vector<std::function<bool()>> waiting_;  // by thread: for what; empty where it runs
  std::vector<bool> ended_;
  std::string failure_;
};

// Sent as soon as it is begun.
class SentMessage : public PendingMessage {
 public:
  void wait() override {}
  bool is_done() override { return true; }
};

class ExpectedMessage : public PendingMessage {
 public:
  ExpectedMessage(Hub& hub, Mailbox mailbox, int thread, at::Tensor into)
      : hub_(hub),
        mailbox_(std::move(mailbox)),
        number_(hub.expect(mailbox_)),
        thread_(thread),
        into_(std::move(into)) {}

  void wait() override {
    if (!into_.defined()) return;
    const at::Tensor message = hub_.take(mailbox_, number_, thread_);
    require(message.nbytes() == into_.nbytes(),
            "communicator: rank {} expected {} bytes of rank {}, and got {}", std::get<2>(mailbox_),
            into_.nbytes(), std::get<1>(mailbox_), message.nbytes());
    std::memcpy(into_.mutable_data_ptr(), message.const_data_ptr(), message.nbytes());
    into_.reset();
  }
  bool is_done() override {
    if (into_.defined() && hub_.has(mailbox_, number_)) wait();
    return !into_.defined();
  }

 private:
  Hub& hub_;
  Mailbox mailbox_;
  int64_t number_;
  int thread_;
  at::Tensor into_;  // until it is done
};

class ThreadCommunicator : public Communicator {
 public:
  ThreadCommunicator(Hub& hub, std::string name, int thread, int rank, int size)
      : Communicator(rank, size), hub_(hub), name_(std::move(name)), thread_(thread) {}

  void barrier() override { sum_in_place(at::zeros({1}, at::kLong)); }

  std::unique_ptr<Communicator> split(int group) override {
    const at::Tensor groups = at::zeros({size()}, at::kLong);
    groups.mutable_data_ptr<int64_t>()[rank()] = group;
    sum_in_place(groups);
    const std::string name = fmt::format("{}.{}:{}", name_, splits_++, group);
    if (group < 0) return nullptr;
    int own = 0, members = 0;
    for (int other = 0; other < size(); ++other) {
      if (groups.const_data_ptr<int64_t>()[other] != group) continue;
      if (other == rank()) own = members;
      ++members;
    }
    return std::make_unique<ThreadCommunicator>(hub_, name, thread_, own, members);
  }

  [[noreturn]] void abort(const std::string& message) override {
    hub_.fail(message);
    throw_error(message);
  }

  void require_nothing_left() override {
    const size_t left = hub_.left(name_, rank());
    require(left == 0, "communicator: rank {} has not received {} of its messages", rank(), left);
  }

 private:
  std::unique_ptr<PendingMessage> begin_send(const at::Tensor& tensor, int to,
                                             Channel channel) override {
    hub_.put({name_, rank(), to, channel}, tensor);
    return std::make_unique<SentMessage>();
  }
  std::unique_ptr<PendingMessage> begin_receive(const at::Tensor& into, int from,
                                                Channel channel) override {
    return std::make_unique<ExpectedMessage>(hub_, Mailbox{name_, from, rank(), channel}, thread_,
                                             into);
  }

  // What all ranks do together has mailboxes of its own.
  Mailbox together(int from, int to) const {
    return {name_ + ", together", from, to, Channel::other};
  }
  void take_together(int from, const at::Tensor& into) {
    ExpectedMessage(hub_, together(from, rank()), thread_, into).wait();
  }

  // Rank 0 adds, in the order of ranks.
  void sum_in_place(const at::Tensor& tensor) override {
    if (rank() == 0) {
      const at::Tensor part = at::empty_like(tensor);
      for (int other = 1; other < size(); ++other) {
        take_together(other, part);
        tensor.add_(part);
      }
    } else {
      hub_.put(together(rank(), 0), tensor);
    }
    take_from(0, tensor);
  }

  void take_from(int root, const at::Tensor& tensor) override {
    if (rank() != root) return take_together(root, tensor);
    for (int other = 0; other < size(); ++other) {
      if (other != root) hub_.put(together(root, other), tensor);
    }
  }

  Hub& hub_;
  std::string name_;
  int thread_;
  int splits_ = 0;
};

}  // namespace

void run_on_threads(int size, const std::function<void(Communicator&)>& work) {
  Hub hub(size);
  std::mutex first;
  std::exception_ptr thrown;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        ThreadCommunicator communicator(hub, "world", rank, rank, size);
        work(communicator);
      } catch (const std::exception& error) {
        {
          const std::lock_guard lock(first);
          if (!thrown) thrown = std::current_exception();
        }
        hub.fail(error.what());
      }
      hub.end(rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (thrown) std::rethrow_exception(thrown);
  require(hub.left() == 0, "communicator: {} messages were never received", hub.left());
}

}  // namespace attnres
