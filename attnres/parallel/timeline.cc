#include "attnres/parallel/timeline.h"

#include <fmt/core.h>

#include <utility>

namespace attnres {

Timeline::Event::Event(Timeline* timeline, const char* kind, std::string name)
    : timeline_(timeline) {
  if (timeline_ == nullptr) return;
  place_ = timeline_->spans_.size();
  const double now = timeline_->now();
  timeline_->spans_.push_back({kind, std::move(name), now, now});
}

Timeline::Event::~Event() {
  if (timeline_ != nullptr) timeline_->spans_[place_].end = timeline_->now();
}

Timeline::Mark Timeline::begin(Timeline* timeline, const char* kind, std::string name) {
  if (timeline == nullptr) return 0;
  const double now = timeline->now();
  timeline->spans_.push_back({kind, std::move(name), now, now, /*is_beside=*/true});
  return timeline->spans_.size() - 1;
}

void Timeline::end(Timeline* timeline, Mark mark) {
  if (timeline != nullptr) timeline->spans_[mark].end = timeline->now();
}

double Timeline::now() const {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin_).count();
}

std::string Timeline::row(int rank) const {
  std::string row = fmt::format(
      R"({{"ph":"M","name":"process_name","pid":{},"args":{{"name":"rank {}"}}}})", rank, rank);
  int beside = 0;
  for (const Span& span : spans_) {
    if (span.is_beside) {
      // What overlaps is a pair of events with a number.
      for (const auto& [phase, time] : {std::pair{'b', span.begin}, std::pair{'e', span.end}}) {
        row += fmt::format(
            ",\n"
            R"({{"ph":"{}","cat":"{}","name":"{}","id":{},"pid":{},"tid":0,"ts":{:.1f}}})",
            phase, span.kind, span.name, beside, rank, time);
      }
      ++beside;
      continue;
    }
    row += fmt::format(
        ",\n"
        R"({{"ph":"X","cat":"{}","name":"{}","pid":{},"tid":0,"ts":{:.1f},"dur":{:.1f}}})",
        span.kind, span.name, rank, span.begin, span.end - span.begin);
  }
  return row;
}

std::string chrome_trace(const std::vector<std::string>& rows) {
  std::string trace = "{\"traceEvents\":[\n";
  for (size_t i = 0; i < rows.size(); ++i) trace += (i == 0 ? "" : ",\n") + rows[i];
  return trace + "\n]}\n";
}

}  // namespace attnres
