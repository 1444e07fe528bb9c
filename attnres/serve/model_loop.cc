#include "attnres/serve/model_loop.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <new>
#include <utility>

#include "attnres/serve/api_error.h"
#include "attnres/support/memory.h"

namespace attnres {
namespace {

constexpr const char* kGone = "the client has gone";

// Tensors of every number of tokens leave gaps, of which long runs make more and more.
class FreedMemory {
 public:
  void add() { is_some_ = true; }
  bool is_some() const { return is_some_; }
  // Not often, since the next step has to take it again.
  std::chrono::steady_clock::time_point due() const { return due_; }
  void give_back() {
    give_back_freed_memory();
    is_some_ = false;
    due_ = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  }

 private:
  bool is_some_ = true;
  std::chrono::steady_clock::time_point due_ = std::chrono::steady_clock::now();
};

}  // namespace

ModelLoop::ModelLoop(TextEngine& engine, int64_t slots, int64_t queue)
    : engine_(engine), slots_(slots), queue_(queue), thread_([this] { run(); }) {}

ModelLoop::~ModelLoop() {
  end("the server ends");
  thread_.join();
}

std::shared_ptr<Exchange> ModelLoop::submit(std::vector<TextRequest> sequences,
                                            const std::string& client, std::function<bool()> gone) {
  auto exchange = std::make_shared<Exchange>(std::move(gone));
  const std::lock_guard lock(mutex_);
  if (end_) throw ApiError(503, "shutting_down", *end_);
  const auto count = static_cast<int64_t>(sequences.size());
  const int64_t free = slots_ - std::min(slots_, status_.running);
  if (waiting_.size() + count > queue_ + free) {
    throw ApiError(429, "queue_full",
                   "as many requests wait as this server lets wait, " + std::to_string(queue_) +
                       "; try again later");
  }
  try {
    for (size_t i = 0; i < sequences.size(); ++i) {
      waiting_.push(client, {exchange, i, std::move(sequences[i])});
    }
  } catch (const std::bad_alloc&) {
    exchange->cancel();  // nobody hears of those that wait already
    throw;
  }
  wake_.notify_one();
  return exchange;
}

void ModelLoop::end(const std::string& error) {
  const std::lock_guard lock(mutex_);
  if (!end_) end_ = error;
  wake_.notify_one();
}

LoopStatus ModelLoop::status() const {
  const std::lock_guard lock(mutex_);
  LoopStatus status = status_;
  status.slots = slots_;
  status.waiting = waiting_.size();
  return status;
}

void ModelLoop::run() {
  const auto or_fail = [&](const auto& part) {
    try {
      part();
    } catch (const std::exception& e) {
      fail_running(e.what());
    }
  };
  FreedMemory freed;
  std::vector<Sequence> admitted;
  admitted.reserve(slots_);  // not when memory may be short
  bool ends = false;
  while (!ends) {
    or_fail([&] {
      std::unique_lock lock(mutex_);
      const auto has_work = [&] { return end_ || waiting_.size() > 0 || !running_.empty(); };
      while (freed.is_some() && !wake_.wait_until(lock, freed.due(), has_work)) {
        lock.unlock();
        freed.give_back();
        lock.lock();
      }
      wake_.wait(lock, has_work);
      ends = end_.has_value();
      if (!ends) admit(&admitted);
    });
    if (ends) break;
    or_fail([&] { drop_ended(); });
    for (Sequence& sequence : admitted) begin(std::move(sequence));
    admitted.clear();
    or_fail([&] { step(); });
    freed.add();
  }
  fail_all(*end_);
}

// As many as there are slots for. Those whose asker has gone are dropped.
void ModelLoop::admit(std::vector<Sequence>* admitted) {
  const auto ended = [](const Sequence& sequence) { return sequence.exchange->ended(); };
  for (const Sequence& sequence : waiting_.take_if(ended)) {
    ++status_.finished;
    sequence.exchange->fail(sequence.index, kGone);
  }
  status_.running = static_cast<int64_t>(running_.size());
  for (; waiting_.size() > 0 && status_.running < slots_; ++status_.running) {
    admitted->push_back(waiting_.pop());
  }
}

void ModelLoop::begin(Sequence sequence) {
  try {
    const int64_t number = engine_.submit(sequence.request);
    running_.emplace(number, std::move(sequence));
  } catch (const std::exception& e) {
    finish(sequence, e.what());
  }
}

void ModelLoop::drop_ended() {
  std::vector<int64_t> ended;
  for (const auto& [number, sequence] : running_) {
    if (sequence.exchange->ended()) ended.push_back(number);
  }
  for (const int64_t number : ended) {
    engine_.cancel(number);
    const Sequence sequence = std::move(running_.extract(number).mapped());
    finish(sequence, kGone);
  }
}

void ModelLoop::step() {
  std::vector<TextUpdate> updates = engine_.step();
  std::vector<std::pair<std::shared_ptr<Exchange>, Exchange::Heard>> heard;
  heard.reserve(updates.size());  // then nothing is lost where memory is short
  int64_t ended = 0;
  for (TextUpdate& update : updates) {
    const auto found = running_.find(update.request);
    if (found == running_.end()) continue;
    const auto& [exchange, index, request] = found->second;
    const bool stopped = update.stopped.has_value();
    heard.push_back({exchange, {index, std::move(update)}});
    if (!stopped) continue;
    running_.erase(found);
    ++ended;
  }
  // Who hears of a step finds it in the status.
  count(ended);
  for (auto& [exchange, what] : heard) exchange->hear(std::move(what));
}

void ModelLoop::fail_running(std::string_view error, bool shuts_down) {
  const std::map<int64_t, Sequence> failed = std::exchange(running_, {});
  for (const auto& [number, sequence] : failed) {
    engine_.cancel(number);
    finish(sequence, error, shuts_down);
  }
}

void ModelLoop::fail_all(std::string_view error) {
  fail_running(error, /*shuts_down=*/true);
  std::vector<Sequence> waiting;
  {
    const std::lock_guard lock(mutex_);
    waiting = waiting_.take_if([](const Sequence&) { return true; });
  }
  for (const Sequence& sequence : waiting) {
    finish(sequence, error, /*shuts_down=*/true);
  }
}

// After a change to what runs.
void ModelLoop::count(int64_t finished) {
  const std::lock_guard lock(mutex_);
  status_.finished += finished;
  status_.running = static_cast<int64_t>(running_.size());
  status_.engine = engine_.counts();
}

void ModelLoop::finish(const Sequence& sequence, std::string_view error, bool shuts_down) {
  count(1);
  sequence.exchange->fail(sequence.index, error, shuts_down);
}

}  // namespace attnres
