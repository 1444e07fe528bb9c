// The thread that computes: it alone steps the engine, for requests that come from any number of
// others.
//
// Sequences wait by client, and clients take turns, so that one who asks for many does not hold up
// the rest; of what runs, the engine computes a token each and pieces of prompts in every step.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "attnres/infer/text_engine.h"
#include "attnres/serve/fair_queue.h"

namespace attnres {

// Sequences that belong together, as their asker sees them.
class Exchange {
 public:
  using Time = std::chrono::steady_clock::time_point;
  struct Heard {
    size_t sequence = 0;  // which of them
    TextUpdate update = {};
    bool shuts_down = false;  // why it failed
  };

  // Waits for what comes next; nothing where the deadline comes before.
  std::optional<Heard> next(Time deadline);
  // Nothing more is wanted: what waits or runs of it fails before the next step.
  void cancel();

 private:
  friend class ModelLoop;
  bool ended() const;  // cancelled, or the asker has gone
  void hear(Heard heard);
  void fail(size_t sequence, const std::string& error, bool shuts_down = false);

  mutable std::mutex mutex_;
  std::condition_variable heard_anew_;
  std::deque<Heard> heard_;
  bool cancelled_ = false;
  std::function<bool()> gone_;
};

struct LoopStatus {
  int64_t waiting = 0, running = 0;  // sequences
  int64_t finished = 0;              // since the start, those that failed among them
  EngineCounts engine = {};          // after the last step
};

class ModelLoop {
 public:
  // The engine must outlive it. `slots` sequences run at once, and `queue` wait.
  ModelLoop(TextEngine& engine, int64_t slots, int64_t queue);
  ~ModelLoop();  // what waits or runs fails

  // Sequences of which each is `check`ed. `gone` is asked before each step: what waits or runs of a
  // client that has gone fails. Throws ApiError where the queue has no room for all, or the loop
  // has ended.
  std::shared_ptr<Exchange> submit(std::vector<TextRequest> sequences, const std::string& client,
                                   std::function<bool()> gone);

  // Ends all that waits or runs with this error, and takes nothing any more.
  void end(const std::string& error);

  LoopStatus status() const;

 private:
  struct Sequence {
    std::shared_ptr<Exchange> exchange;
    size_t index = 0;  // in the exchange
    TextRequest request;
  };

  void run();
  std::vector<Sequence> admit();
  void begin(Sequence sequence);
  void drop_ended();
  void step();
  void fail_running(const std::string& error, bool shuts_down = false);
  void fail_all(const std::string& error);
  void count(int64_t finished);
  void finish(const Sequence& sequence, const std::string& error, bool shuts_down = false);

  TextEngine& engine_;
  const int64_t slots_, queue_;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  FairQueue<Sequence> waiting_;
  std::optional<std::string> end_;  // the error that ended it
  LoopStatus status_;

  std::map<int64_t, Sequence> running_;  // by the engine's number; the thread's alone
  std::thread thread_;
};

}  // namespace attnres
