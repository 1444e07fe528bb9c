#include "attnres/parallel/schedule.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include "attnres/plots/html.h"
#include "attnres/plots/page_parts.h"
#include "attnres/report/run_figures.h"
#include "attnres/support/told_numbers.h"

namespace attnres {
namespace {

constexpr size_t kMostRanks = 16;     // that are drawn
constexpr int kMostNumber = 1 << 24;  // of a rank, a stage or the like
// In units of the drawing.
constexpr double kWidth = 960, kLabels = 58, kBox = 24, kSum = 4, kLine = 15, kGap = 12;
constexpr const char* kForward = "#8cc7ee";
constexpr const char* kBackward = "#f2bd66";
constexpr const char* kSums = "#009e73";

struct TracedRank {
  struct Box {
    double begin, end;
    PipelineAction action;
  };
  std::vector<Box> boxes = {};
  std::vector<std::pair<double, double>> sums = {}, updates = {};

  void keep_between(double begin, double end) {
    const auto is_out = [&](double time) { return time < begin || time >= end; };
    std::erase_if(boxes, [&](const Box& box) { return is_out(box.begin); });
    std::erase_if(sums, [&](const auto& sum) { return is_out(sum.first); });
    std::erase_if(updates, [&](const auto& update) { return is_out(update.first); });
  }
};

double time_at(const Json& event, const char* key) {
  const double time = measured_at(event, key);
  return std::isnan(time) ? 0 : time;
}

// A number of a rank, stage or site; 0 where it is none.
int number_at(const Json& object, const char* key) {
  const int64_t number = count_at(object, key).value_or(0);
  return number <= kMostNumber ? static_cast<int>(number) : 0;
}

std::map<int, TracedRank> traced_ranks(const Json& trace) {
  std::map<int, TracedRank> ranks;
  std::map<std::pair<int, int>, double> begun;  // sums, by rank and number
  for (const Json& event : trace.at("traceEvents")) {
    const std::string phase = event.value("ph", ""), kind = event.value("cat", "");
    const double begin = time_at(event, "ts"), end = begin + time_at(event, "dur");
    const int rank = number_at(event, "pid");
    if (phase == "X" && kind == "update") {
      ranks[rank].updates.emplace_back(begin, end);
    } else if (phase == "X") {
      const auto action = action_of(event.value("name", ""));
      const bool is_known = action && std::min(action->stage, action->micro_batch) >= 0 &&
                            std::max(action->stage, action->micro_batch) <= kMostNumber;
      if (is_known) ranks[rank].boxes.push_back({begin, end, *action});
    } else if (phase == "b") {
      begun[{rank, number_at(event, "id")}] = begin;
    } else if (phase == "e") {
      ranks[rank].sums.emplace_back(begun[{rank, number_at(event, "id")}], begin);
    }
  }
  return ranks;
}

// Leaves the last step that all ranks have ended; false where there is none.
bool keep_last_step(std::map<int, TracedRank>& ranks) {
  size_t steps = ranks.empty() ? 0 : ranks.begin()->second.updates.size();
  for (const auto& [rank, traced] : ranks) steps = std::min(steps, traced.updates.size());
  if (steps == 0) return false;
  for (auto& [rank, traced] : ranks) {
    const double before = steps > 1 ? traced.updates[steps - 2].second : 0;
    traced.keep_between(before, traced.updates[steps - 1].second);
  }
  return true;
}

// "b0" of the embedding and "b3" of a block, as the report calls them; other names as they are.
std::string short_name(const std::string& name) {
  if (name == "embedding") return "b0";
  return name.starts_with("block ") ? "b" + name.substr(6) : name;
}

// "b0 to b3, b5": runs of blocks in one.
std::string list_of(const Json& names) {
  constexpr size_t kLongest = 10;  // whose number is one of 64 bits
  std::string list;
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string first = short_name(names[i].get<std::string>());
    size_t last = i;
    const auto number = [](const std::string& name) {
      const bool is_block = name.size() > 1 && name.size() < kLongest && name[0] == 'b' &&
                            name.find_first_not_of("0123456789", 1) == std::string::npos;
      return is_block ? std::optional(std::stoll(name.substr(1))) : std::nullopt;
    };
    const auto begin = number(first);
    while (begin && last + 1 < names.size() &&
           number(short_name(names[last + 1].get<std::string>())) ==
               *begin + static_cast<int64_t>(last + 1 - i)) {
      ++last;
    }
    list += (list.empty() ? "" : ", ") + first;
    if (last > i) {
      list += (last == i + 1 ? ", " : " to ") + short_name(names[last].get<std::string>());
    }
    i = last;
  }
  return list.empty() ? "none" : list;
}

std::string rectangle(double x, double y, double width, double height, const char* fill,
                      double opacity, const std::string& title) {
  return fmt::format(
      "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.0f}\" fill=\"{}\" "
      "fill-opacity=\"{:.2f}\"><title>{}</title></rect>\n",
      x, y, std::max(width, 0.5), height, fill, opacity, escape_html(title));
}

std::string words(double x, double y, const char* anchor, const char* fill, double size,
                  const std::string& text) {
  return fmt::format(
      "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" fill=\"{}\" font-size=\"{}\">{}</text>\n",
      x, y, anchor, fill, size, escape_html(text));
}

class Drawing {
 public:
  Drawing(const Json& stages, const std::map<int, TracedRank>& ranks) : stages_(stages) {
    for (const Json& stage : stages) ranks_ = std::max(ranks_, number_at(stage, "rank") + 1);
    begin_ = 1e300;
    for (const auto& [rank, traced] : ranks) {
      for (const auto& box : traced.boxes) begin_ = std::min(begin_, box.begin);
      for (const auto& update : traced.updates) end_ = std::max(end_, update.second);
    }
    for (const auto& [rank, traced] : ranks) add(rank, traced);
  }

  std::string svg(const std::string& alt) const {
    return fmt::format(
        "<div class=\"wide\"><svg class=\"schedule\" viewBox=\"0 0 {} {:.0f}\" role=\"img\" "
        "aria-label=\"{}\"><g>\n{}</g></svg></div>\n",
        kWidth, y_, escape_html(alt), parts_);
  }
  double milliseconds() const { return (end_ - begin_) / 1e3; }

 private:
  double at(double time) const {
    return kLabels + (time - begin_) / (end_ - begin_) * (kWidth - kLabels);
  }

  void add(int rank, const TracedRank& traced) {
    parts_ += words(0, y_ + kBox - 7, "start", "currentColor", 13, fmt::format("rank {}", rank));
    for (const auto& box : traced.boxes) add(box);
    for (const auto& [begin, end] : traced.updates) {
      parts_ += rectangle(at(begin), y_, at(end) - at(begin), kBox, "#8a8a85", 0.6, "update");
    }
    for (const auto& [begin, end] : traced.sums) {
      parts_ += rectangle(at(begin), y_ + kBox + 1, at(end) - at(begin), kSum, kSums, 1,
                          "sum of gradients");
    }
    y_ += kBox + kSum + kLine;
    for (size_t i = 0; i < stages_.size(); ++i) {
      const Json& stage = stages_[i];
      if (number_at(stage, "rank") != rank % ranks_) continue;
      std::string text = fmt::format("stage {}, sites {} to {}", letter(static_cast<int>(i), 'a'),
                                     number_at(stage, "first"), number_at(stage, "last") - 1);
      if (i > 0) {
        text += fmt::format(": holds {}, receives {}", list_of(stage.at("holds")),
                            list_of(stage.at("receives")));
      }
      parts_ += words(kLabels, y_, "start", "currentColor", 12, text);
      y_ += kLine;
    }
    y_ += kGap - kLine / 2;
  }

  void add(const TracedRank::Box& box) {
    const auto& [direction, stage, micro_batch] = box.action;
    const bool is_forward = direction == Direction::forward;
    const double x = at(box.begin), width = at(box.end) - x;
    const int round = stage / ranks_;
    parts_ += rectangle(
        x, y_, width, kBox, is_forward ? kForward : kBackward, std::max(0.35, 1 - 0.3 * round),
        fmt::format("{}, {:.2f} ms", describe(box.action), (box.end - box.begin) / 1e3));
    const std::string label =
        fmt::format("{}{}", micro_batch + 1, letter(stage, is_forward ? 'a' : 'A'));
    if (width >= 8.0 * static_cast<double>(label.size())) {
      parts_ += words(x + width / 2, y_ + kBox - 8, "middle", "#1c1c1a", 11.5, label);
    }
  }

  // 'a' for a rank's first stage, 'b' for its second.
  std::string letter(int stage, char first) const {
    return std::string(1, static_cast<char>(first + std::min(stage / ranks_, 25)));
  }

  const Json& stages_;
  int ranks_ = 1;
  double begin_ = 0, end_ = 0, y_ = 0;
  std::string parts_;
};

std::string drawing_of(const RunData& run) {
  const Json& stages = run.trace.at("stages");
  std::map<int, TracedRank> ranks = traced_ranks(run.trace);
  if (!keep_last_step(ranks)) return "";
  // Replicas do the same: one of a pipeline's is enough.
  int of_pipeline = 1;
  for (const Json& stage : stages) {
    of_pipeline = std::max(of_pipeline, number_at(stage, "rank") + 1);
  }
  const size_t all = ranks.size();
  const size_t shown =
      std::min(of_pipeline > 1 ? static_cast<size_t>(of_pipeline) : all, kMostRanks);
  while (ranks.size() > shown) ranks.erase(std::prev(ranks.end()));
  const Drawing drawing(stages, ranks);
  std::string heading = fmt::format(
      "<h3><bdi>{}</bdi> <small>{} of {}, {:.1f} ms</small></h3>\n", escape_html(run.label),
      ranks.size(), all == 1 ? "1 rank" : fmt::format("{} ranks", all), drawing.milliseconds());
  return heading + drawing.svg("Schedule of " + run.label);
}

}  // namespace

std::string schedule_figures(const std::vector<RunData>& runs) {
  std::string drawings;
  for (const RunData& run : runs) {
    try {
      if (!run.trace.is_null()) drawings += drawing_of(run);
    } catch (const Json::exception&) {
      // Not a trace of ours.
    }
  }
  if (drawings.empty()) return "";
  return drawings +
         how_to_read(
             "What each process computed when, in one step, as in Figure 3 of arXiv 2603.15031: "
             "<b>3a</b> is the forward of micro-batch 3 through a rank’s first stage, <b>3B</b> "
             "the "
             "backward through its second, grey the update, and a green line the sum of a bucket "
             "of gradients over replicas. Below: the finished blocks that a rank has already when "
             "it begins a stage, and those that cross into it for each micro-batch; b0 is the "
             "token embedding.");
}

}  // namespace attnres
