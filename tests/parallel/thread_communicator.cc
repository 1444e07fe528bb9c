#include "tests/parallel/thread_communicator.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>

#include "attnres/support/error.h"
#include "attnres/support/progress.h"

namespace attnres {
namespace {

// A communicator's name, the ranks of sender and receiver in it, and the channel.
using Mailbox = std::tuple<std::string, int, int, Channel>;

// A communicator's name, and the number of what its ranks do together.
using Gathering = std::pair<std::string, int64_t>;

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
  // This message, once it is there; undefined where it is not before the deadline.
  at::Tensor take(const Mailbox& mailbox, int64_t number, int thread, double deadline) {
    std::unique_lock lock(mutex_);
    auto& there = messages_[mailbox].there;
    if (!wait_until([&] { return there.contains(number); }, lock, thread, deadline)) return {};
    return there.extract(number).mapped();
  }

  // What a rank of `ranks` gives to something that all of a communicator do together.
  void join(const Gathering& gathering, int rank, int ranks, std::optional<int> root,
            const at::Tensor& part) {
    const std::lock_guard lock(mutex_);
    require_going();
    Gathered& gathered = gathered_[gathering];
    gathered.parts.resize(ranks);
    gathered.parts[rank] = part.clone();
    gathered.root = root;
    ++gathered.came;
    changed_.notify_all();
  }
  // The root's part, once it is there, or the sum, once all are, in the order of ranks; undefined
  // where it is not before the deadline. Each rank takes it once.
  at::Tensor take(const Gathering& gathering, int thread, double deadline) {
    std::unique_lock lock(mutex_);
    Gathered& gathered = gathered_[gathering];
    const auto is_there = [&] {
      return gathered.root ? gathered.parts[*gathered.root].defined()
                           : gathered.came == gathered.parts.size();
    };
    if (!wait_until(is_there, lock, thread, deadline)) return {};
    if (!gathered.result.defined()) {
      gathered.result = gathered.parts[gathered.root.value_or(0)];
      for (size_t i = 1; !gathered.root && i < gathered.parts.size(); ++i) {
        gathered.result.add_(gathered.parts[i]);
      }
    }
    const at::Tensor result = gathered.result;
    if (++gathered.taken == gathered.parts.size()) gathered_.erase(gathering);
    return result;
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

  struct Gathered {
    std::vector<at::Tensor> parts;  // by rank
    std::optional<int> root;
    size_t came = 0, taken = 0;
    at::Tensor result;
  };

  // A deadline that has passed only looks.
  template <class IsThere>
  bool wait_until(const IsThere& is_there, std::unique_lock<std::mutex>& lock, int thread,
                  double deadline) {
    while (!is_there()) {
      require_going();
      const double left = deadline - monotonic_seconds();
      if (left <= 0) return false;
      waiting_[thread] = is_there;
      fail_if_all_wait();
      if (failure_.empty()) changed_.wait_for(lock, std::chrono::duration<double>(left));
      waiting_[thread] = nullptr;
    }
    return true;
  }

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
  std::map<Gathering, Gathered> gathered_;
  std::vector<std::function<bool()>> waiting_;  // by thread: for what; empty where it runs
  std::vector<bool> ended_;
  std::string failure_;
};

// Sent as soon as it is begun.
class SentMessage : public PendingMessage {
 public:
  SentMessage(std::shared_ptr<Waiting> waiting, int to)
      : PendingMessage(std::move(waiting), Way::to, to) {}

 private:
  bool done_before(double) override { return true; }
};

class ExpectedMessage : public PendingMessage {
 public:
  ExpectedMessage(std::shared_ptr<Waiting> waiting, Hub& hub, Mailbox mailbox, int thread,
                  at::Tensor into)
      : PendingMessage(std::move(waiting), Way::from, std::get<1>(mailbox)),
        hub_(hub),
        mailbox_(std::move(mailbox)),
        number_(hub.expect(mailbox_)),
        thread_(thread),
        into_(std::move(into)) {}

 private:
  bool done_before(double deadline) override {
    const at::Tensor message = hub_.take(mailbox_, number_, thread_, deadline);
    if (!message.defined()) return false;
    require(message.nbytes() == into_.nbytes(),
            "communicator: rank {} expected {} bytes of rank {}, and got {}", std::get<2>(mailbox_),
            into_.nbytes(), std::get<1>(mailbox_), message.nbytes());
    std::memcpy(into_.mutable_data_ptr(), message.const_data_ptr(), message.nbytes());
    return true;
  }

  Hub& hub_;
  Mailbox mailbox_;
  int64_t number_;
  int thread_;
  at::Tensor into_;
};

// A sum or a broadcast.
class JoinedGathering : public PendingMessage {
 public:
  JoinedGathering(std::shared_ptr<Waiting> waiting, Hub& hub, Gathering gathering, int thread,
                  at::Tensor into)
      : PendingMessage(std::move(waiting), Way::together),
        hub_(hub),
        gathering_(std::move(gathering)),
        thread_(thread),
        into_(std::move(into)) {}

 private:
  bool done_before(double deadline) override {
    const at::Tensor result = hub_.take(gathering_, thread_, deadline);
    if (!result.defined()) return false;
    std::memcpy(into_.mutable_data_ptr(), result.const_data_ptr(), result.nbytes());
    return true;
  }

  Hub& hub_;
  Gathering gathering_;
  int thread_;
  at::Tensor into_;
};

class ThreadCommunicator : public Communicator {
 public:
  ThreadCommunicator(Hub& hub, std::string name, int thread, int rank, std::vector<int> threads)
      : Communicator(rank, std::move(threads)),
        hub_(hub),
        name_(std::move(name)),
        thread_(thread) {}

  std::unique_ptr<Communicator> split(int group) override {
    const at::Tensor groups = at::zeros({size()}, at::kLong);
    groups.mutable_data_ptr<int64_t>()[rank()] = group;
    begin_sum(groups, std::nullopt)->wait("a split");
    const std::string name = fmt::format("{}.{}:{}", name_, splits_++, group);
    if (group < 0) return nullptr;
    int own = 0;
    std::vector<int> threads;
    for (int other = 0; other < size(); ++other) {
      if (groups.const_data_ptr<int64_t>()[other] != group) continue;
      if (other == rank()) own = static_cast<int>(threads.size());
      threads.push_back(world_rank(other));
    }
    auto part = std::make_unique<ThreadCommunicator>(hub_, name, thread_, own, std::move(threads));
    part->set_time_limit(waiting()->time_limit);
    return part;
  }

  [[noreturn]] void abort(const std::string& message) override {
    throw_error(message);  // which run_on_threads keeps before it tells the others
  }

 private:
  std::unique_ptr<PendingMessage> begin_send(const at::Tensor& tensor, int to,
                                             Channel channel) override {
    hub_.put({name_, rank(), to, channel}, tensor);
    return std::make_unique<SentMessage>(waiting(), to);
  }
  std::unique_ptr<PendingMessage> begin_receive(const at::Tensor& into, int from,
                                                Channel channel) override {
    return std::make_unique<ExpectedMessage>(waiting(), hub_, Mailbox{name_, from, rank(), channel},
                                             thread_, into);
  }

  std::unique_ptr<PendingMessage> join(const at::Tensor& tensor, std::optional<int> source,
                                       const at::Tensor& into) {
    const Gathering gathering = {name_, gatherings_++};
    hub_.join(gathering, rank(), size(), source, tensor);
    return std::make_unique<JoinedGathering>(waiting(), hub_, gathering, thread_, into);
  }
  std::unique_ptr<PendingMessage> begin_sum(const at::Tensor& tensor,
                                            std::optional<int> root) override {
    const bool is_kept = !root || *root == rank();
    return join(tensor, std::nullopt, is_kept ? tensor : at::empty_like(tensor));
  }
  std::unique_ptr<PendingMessage> begin_to_all(const at::Tensor& tensor, int root) override {
    return join(tensor, root, tensor);
  }

  void require_no_message() override {
    const size_t left = hub_.left(name_, rank());
    require(left == 0, "communicator: rank {} has not received {} of its messages", rank(), left);
  }

  Hub& hub_;
  std::string name_;
  int thread_;
  int splits_ = 0;
  int64_t gatherings_ = 0;
};

}  // namespace

void run_on_threads(int size, const std::function<void(Communicator&)>& work) {
  Hub hub(size);
  std::vector<int> all(size);
  std::iota(all.begin(), all.end(), 0);
  std::mutex first;
  std::exception_ptr thrown;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        ThreadCommunicator communicator(hub, "world", rank, rank, all);
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
