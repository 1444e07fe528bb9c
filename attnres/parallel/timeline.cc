#include "attnres/parallel/timeline.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "attnres/parallel/pipeline.h"
#include "attnres/support/json.h"

namespace attnres {
namespace {

Json describe_stages(const PipelinePlan& plan) {
  Json stages = Json::array();
  for (size_t n = 0; n < plan.stages.size(); ++n) {
    const StageTransfers& stage = plan.stages[n];
    Json holds = Json::array(), receives = Json::array();
    for (size_t i = 0; n > 0 && i < stage.copies.size(); ++i) {
      if (stage.copies[i] == kNoCopy) continue;
      const bool is_held = stage.copies[i] != static_cast<int>(n);
      (is_held ? holds : receives).push_back(stage.before.sealed[i].name);
    }
    stages.push_back({{"rank", plan.size.rank_of(static_cast<int>(n))},
                      {"first", stage.sites.first},
                      {"last", stage.sites.last},
                      {"holds", holds},
                      {"receives", receives}});
  }
  return stages;
}

}  // namespace

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

std::string chrome_trace(const std::vector<std::string>& rows, const PipelinePlan& plan) {
  std::string trace =
      fmt::format("{{\"stages\":{},\n\"traceEvents\":[\n", describe_stages(plan).dump());
  for (size_t i = 0; i < rows.size(); ++i) trace += (i == 0 ? "" : ",\n") + rows[i];
  return trace + "\n]}\n";
}

}  // namespace attnres
