// When a rank computed, sent and waited, as a Chrome trace: a file that ui.perfetto.dev and
// chrome://tracing open.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace attnres {

struct PipelinePlan;

class Timeline {
 public:
  // Time begins now: on all ranks together, if they make theirs after a barrier.
  Timeline() : begin_(Clock::now()) {}

  // From when it is made to when it is destroyed. Where the timeline is null it is nothing.
  class Event {
   public:
    Event(Timeline* timeline, const char* kind, std::string name);
    ~Event();
    Event(const Event&) = delete;
    Event& operator=(const Event&) = delete;

   private:
    Timeline* timeline_;
    size_t place_ = 0;
  };

  // The same of what goes on beside others, from begin to end, in a row of its own.
  using Mark = size_t;
  static Mark begin(Timeline* timeline, const char* kind, std::string name);
  static void end(Timeline* timeline, Mark mark);

  // This rank's row of the trace: its events as objects of JSON, separated by commas.
  std::string row(int rank) const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Span {
    const char* kind;  // "forward", "backward", "wait", ..
    std::string name;
    double begin, end;  // microseconds
    bool is_beside = false;
  };
  double now() const;

  Clock::time_point begin_;
  std::vector<Span> spans_;
};

// The file, of all ranks' rows. Besides, in "stages", of each stage its rank, its sites from
// "first" up to "last", and the names of the sealed tensors that its rank "holds" already when it
// begins it, and of those that it "receives".
std::string chrome_trace(const std::vector<std::string>& rows, const PipelinePlan& plan);

}  // namespace attnres
