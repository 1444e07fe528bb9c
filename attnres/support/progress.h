// What long work shows of itself: one line with the rate and the time left.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace attnres {

// Seconds since some fixed moment, never going back.
using Clock = std::function<double()>;
double monotonic_seconds();

// Where a ProgressLine goes.
struct ProgressOutput {
  std::function<void(std::string_view)> write;
  bool terminal = false;         // whether a line can be rewritten in place
  std::function<int()> columns;  // the terminal's width now
  Clock clock = monotonic_seconds;
};
// Standard error. TERM=dumb does not count as a terminal.
ProgressOutput standard_error();

// On a terminal, one line rewritten in place and cut at the terminal's width; elsewhere (a log
// file) a line every ten seconds. The first and the last update are always shown.
class ProgressLine {
 public:
  explicit ProgressLine(ProgressOutput output = standard_error());
  ~ProgressLine();  // finishes
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void update(std::string text);
  // A line that stays, above the progress line.
  void message(std::string_view text);
  // Leaves the last update standing on a line of its own. An update after it begins a new line.
  void finish();

 private:
  void show();

  ProgressOutput output_;
  std::string text_;
  bool shown_ = true;     // whether text_ is what the reader sees
  bool on_line_ = false;  // whether the terminal's cursor stands on our line
  double next_ = 0;       // when the next update may be shown
};

// The time left at the mean rate since the start, evaluations and checkpoints included.
class Eta {
 public:
  // `done` of `total` steps were done before now (a run that resumes).
  explicit Eta(int64_t total, int64_t done = 0, Clock clock = monotonic_seconds);

  // Steps a second since the start; 0 before the first step.
  double rate(int64_t done) const;
  // Seconds; infinite before the first step.
  double left(int64_t done) const;

 private:
  int64_t total_, first_;
  Clock clock_;
  double start_;
};

}  // namespace attnres
