#include "attnres/study/live_view.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>

#include "attnres/study/study_data.h"
#include "attnres/study/study_folder.h"
#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "attnres/support/format.h"
#include "attnres/support/program.h"
#include "attnres/support/shell.h"
#include "attnres/support/terminal.h"
#include "attnres/support/told_numbers.h"

namespace attnres {
namespace fs = std::filesystem;
namespace {

constexpr double kQuiet = 60;   // seconds after which a run is taken to have stopped
constexpr size_t kWindow = 50;  // steps that say how long one takes lately
constexpr const char* kAtWork = "at work";

double seconds_since_written(const RunPaths& run) {
  double least = kNotMeasured;
  for (const fs::path& path : {run.run_json(), run.metrics()}) {
    std::error_code gone;
    const fs::file_time_type written = fs::last_write_time(path, gone);
    if (gone) continue;
    const std::chrono::duration<double> age = fs::file_time_type::clock::now() - written;
    least = std::fmin(least, std::max(age.count(), 0.0));
  }
  return least;
}

// None where there is no checkpoint, or it is being written.
std::optional<int64_t> saved_step_of(const RunPaths& run) {
  try {
    return read_training_state(run.last()).step;
  } catch (const Error&) {
    return std::nullopt;
  }
}

// What its folder says beyond study.json, which is written when a run begins or ends.
LiveStudyRun look_at_live(const fs::path& study, const StudyRunRecord& record) {
  const RunPaths paths = StudyPaths{study}.run(record.name);
  LiveStudyRun run = {.record = record, .quiet_seconds = seconds_since_written(paths)};
  if (run.has_ended() || !path_exists(paths.run_json())) return run;
  const LiveRun live = read_live_run(paths.folder);
  run.is_at_work = live.is_at_work();
  run.has_diverged = live.data.diverged_at.has_value();
  run.record.step = std::max(record.step, live.step());
  if (!live.data.metrics.empty()) run.record.seconds = live.data.metrics.back().seconds;
  if (const Metric* last = last_validation(live.data)) run.record.final_val_loss = last->val_loss;
  return run;
}

// What a run takes of the grid's work; steps where FLOPs are not known.
double weight_of_run(const LiveStudyRun& run) {
  return std::isnan(run.record.flops) ? static_cast<double>(run.record.steps) : run.record.flops;
}

std::string state_of(const LiveStudyRun& run) {
  if (run.is_at_work) return kAtWork;
  return name_of(run.has_diverged ? RunState::diverged : run.record.state);
}

int64_t count_in_state(const LiveStudy& study, std::string_view state) {
  return std::count_if(study.runs.begin(), study.runs.end(),
                       [&](const LiveStudyRun& run) { return state_of(run) == state; });
}

double done_share(const LiveStudy& study) {
  double done = 0, all = 0;
  for (const LiveStudyRun& run : study.runs) {
    done += weight_of_run(run) * run.share();
    all += weight_of_run(run);
  }
  return all > 0 ? done / all : 0;
}

// For the runs that have not ended or failed, at the mean speed of all so far, as many at once as
// are at work now.
double study_seconds_left(const LiveStudy& study) {
  double trained = 0, seconds = 0, left = 0;
  for (const LiveStudyRun& run : study.runs) {
    const double done = weight_of_run(run) * run.share();
    if (done > 0 && std::isfinite(run.record.seconds)) {
      trained += done;
      seconds += run.record.seconds;
    }
    if (!run.has_ended() && !run.has_failed()) left += weight_of_run(run) - done;
  }
  if (left == 0) return 0;
  const auto at_once = std::max<int64_t>(count_in_state(study, kAtWork), 1);
  return left * seconds / trained / static_cast<double>(at_once);
}

std::string time_left(double seconds) {
  return std::isfinite(seconds) ? format_duration(seconds) + " left" : "";
}

// The parts that are not empty.
std::string joined(const std::vector<std::string>& parts, const char* separator) {
  std::string text;
  for (const std::string& part : parts) {
    if (!part.empty()) text += (text.empty() ? "" : separator) + part;
  }
  return text;
}

// Lines that may hold colours, which have no width, stand as they are.
class Frame {
 public:
  explicit Frame(const TextStyle& style) : style_(style) {}

  void add(const std::string& line) { lines_.push_back(in_columns(line, style_.columns)); }
  void add_drawn(const std::string& line) { lines_.push_back(line); }
  bool fits(const std::string& line) const { return characters(line) <= style_.columns; }
  size_t room() const {  // INT64_MAX where there is no limit
    if (style_.lines == 0) return INT64_MAX;
    return style_.lines > lines_.size() ? style_.lines - lines_.size() : 0;
  }

  std::string text() const {
    std::string out;
    for (size_t i = 0; i < lines_.size() && (style_.lines == 0 || i < style_.lines); ++i) {
      std::string line = lines_[i];
      while (line.ends_with(' ')) line.pop_back();
      out += line + "\n";
    }
    return out;
  }

 private:
  TextStyle style_;
  std::vector<std::string> lines_;
};

std::string describe_model(const RunData& run) {
  const auto number = [&](const char* pointer) { return measured_at(find(run.record, pointer)); };
  const double parameters = number("/parameters"), width = number("/recipe/model/width");
  std::vector<std::string> parts = {one_line(run.mechanism)};
  if (run.layers > 0) parts.push_back(counted(run.layers, "layer"));
  if (!std::isnan(width)) parts.push_back(fmt::format("width {:.0f}", width));
  if (!std::isnan(parameters)) parts.push_back(format_count(parameters) + " parameters");
  return joined(parts, ", ");
}

std::string describe_progress(const LiveRun& run) {
  const bool has_end = run.steps > 0;  // as far as run.json says
  std::string state =
      has_end ? time_left(double(run.steps - run.step()) * run.seconds_per_step()) : "";
  if (run.is_done()) {
    const double seconds = run.data.metrics.back().seconds;
    state = std::isfinite(seconds) ? "done in " + format_duration(seconds) : "done";
  } else if (run.data.diverged_at) {
    state = fmt::format("diverged at step {}", *run.data.diverged_at);
  } else if (run.was_interrupted()) {
    state = fmt::format("interrupted {} ago", format_duration(run.quiet_seconds));
  } else if (!run.is_at_work()) {
    state = fmt::format("wrote nothing for {}", format_duration(run.quiet_seconds));
  }
  const std::string all = has_end ? fmt::format("/{}", run.steps) : "";
  return joined({fmt::format("step {}{}", run.step(), all), state}, "  ");
}

// Nothing where it is at work, or has saved nothing to go on from.
void add_way_on(const LiveRun& run, Frame& frame) {
  if (run.data.diverged_at) return frame.add("run.json says why, and how a new run goes on");
  if (run.is_done() || run.is_at_work() || !run.saved_step) return;
  if (run.is_of_study) return frame.add("the command that began the study goes on with it");
  const std::string command = program() + " train --resume --out",
                    folder = for_shell(run.data.path.string()),
                    line = fmt::format("goes on with: {} {}", command, folder);
  if (frame.fits(line)) return frame.add(line);
  // Nothing of it may be cut, and a shell takes it as it stands.
  frame.add("goes on with:");
  frame.add_drawn("  " + command + " \\");
  frame.add_drawn("  " + folder);
}

void add_curve(const LiveRun& run, const char* name, double Metric::*value, int digits,
               const TextStyle& style, Frame& frame) {
  std::vector<double> values;
  for (const Metric& metric : run.data.metrics) {
    if (std::isfinite(metric.*value)) values.push_back(metric.*value);
  }
  if (values.empty()) return;
  const bool is_rate = value == &Metric::tokens_per_second;
  const std::string last = is_rate      ? format_count(values.back())
                           : digits > 0 ? fmt::format("{:.{}f}", values.back(), digits)
                                        : fmt::format("{:.2e}", values.back());
  const std::string label = fmt::format("{:<14}{:>9}  ", name, last);
  frame.add(label + sparkline(values, style.columns - label.size()));
}

void add_depth_weights(const LiveRun& run, const TextStyle& style, Frame& frame) {
  const ProbeSnapshot probe = last_probe(run.data, "depth_weights");
  constexpr size_t kAround = 5, kFewest = 2;  // lines that are not of sources; of those
  if (probe.sites.empty() || frame.room() < kAround + kFewest) return;
  frame.add("");
  frame.add(
      fmt::format("depth weights at step {}: sites read sources, which are lines", probe.step));
  std::vector<std::vector<double>> columns(static_cast<size_t>(probe.sites.rbegin()->first) + 1);
  for (const auto& [site, weights] : probe.sites) columns[static_cast<size_t>(site)] = weights;
  TextStyle part = style;
  if (style.lines > 0) part.lines = frame.room() - (kAround - 2);
  for (const std::string& line : weight_lines(columns, part)) frame.add_drawn(line);
}

// Those to look at first come first: at work, failed, and what was written last.
std::vector<LiveStudyRun> most_telling_first(std::vector<LiveStudyRun> runs) {
  const auto place = [](const LiveStudyRun& run) {
    if (run.is_at_work) return std::pair(0, 0.0);
    if (run.has_failed()) return std::pair(1, 0.0);
    return std::pair(2, std::isnan(run.quiet_seconds) ? INFINITY : run.quiet_seconds);
  };
  std::stable_sort(runs.begin(), runs.end(), [&](const LiveStudyRun& a, const LiveStudyRun& b) {
    return place(a) < place(b);
  });
  return runs;
}

std::string run_line(const LiveStudyRun& run, size_t name_width, size_t bar_width) {
  std::string line =
      in_columns(run.record.name, name_width) + "  " + in_columns(state_of(run), 10) + "  ";
  if (bar_width > 0) line += progress_bar(run.share(), bar_width) + "  ";
  line += fmt::format("{:>13}", fmt::format("{}/{}", run.record.step, run.record.steps));
  const double loss = run.record.final_val_loss;
  return line + (std::isfinite(loss) ? fmt::format("  {:.4f}", loss) : "");
}

std::string describe_grid(const LiveStudy& study) {
  const auto count = [&](const char* state, const char* word) {
    const int64_t runs = count_in_state(study, state);
    return runs > 0 ? fmt::format("{} {}", runs, word) : "";
  };
  const double left = study_seconds_left(study);
  return joined(
      {fmt::format("{}/{} runs done", count_in_state(study, name_of(RunState::done)),
                   study.runs.size()),
       count(kAtWork, kAtWork), count(name_of(RunState::failed), "failed"),
       count(name_of(RunState::diverged), "diverged"), study.is_done() ? "" : time_left(left)},
      ", ");
}

}  // namespace

bool LiveRun::was_interrupted() const {
  const Json* every = find(data.record, "/recipe/train/checkpoint_every");
  const int64_t period = count_at(every).value_or(0);
  return !is_done() && !data.diverged_at && period > 0 && saved_step && *saved_step == step() &&
         step() % period != 0;
}

bool LiveRun::is_at_work() const {
  return !is_done() && !data.diverged_at && !was_interrupted() &&
         quiet_seconds < std::fmax(kQuiet, 5 * seconds_per_step());
}

double LiveRun::seconds_per_step() const {
  const std::vector<Metric>& all = data.metrics;
  if (all.size() < 2) return kNotMeasured;
  const Metric& first = all[all.size() - std::min(all.size(), kWindow)];
  return (all.back().seconds - first.seconds) / static_cast<double>(all.back().step - first.step);
}

double LiveStudyRun::share() const {
  if (record.state == RunState::diverged) return 1;
  if (record.steps == 0) return 0;
  return static_cast<double>(record.step) / static_cast<double>(record.steps);
}

bool LiveStudy::is_done() const {
  return std::all_of(runs.begin(), runs.end(),
                     [](const LiveStudyRun& run) { return run.has_ended(); });
}

LiveRun read_live_run(const fs::path& folder) {
  LiveRun run;
  run.quiet_seconds = seconds_since_written({folder});
  run.data = std::move(read_runs({folder}).front());
  run.steps = count_at(find(run.data.record, "/recipe/train/steps")).value_or(0);
  run.saved_step = saved_step_of({folder});
  run.is_of_study = is_study_folder(fs::weakly_canonical(folder).parent_path().parent_path());
  return run;
}

LiveStudy read_live_study(const fs::path& folder) {
  const fs::path file = StudyPaths{folder}.study_json();
  const StudyRecord record = parse_study_json(read_json(file), file.string());
  LiveStudy study = {
      .name = one_line(record.name), .question = one_line(record.question), .runs = {}};
  for (const StudyRunRecord& run : record.runs) study.runs.push_back(look_at_live(folder, run));
  return study;
}

std::string draw_live(const LiveRun& run, const TextStyle& style) {
  Frame frame(style);
  frame.add(one_line(run.data.label) + "  " + describe_model(run.data));
  frame.add(describe_progress(run));
  add_way_on(run, frame);
  const double share = run.steps > 0 ? double(run.step()) / double(run.steps) : 0;
  frame.add(progress_bar(share, style.columns));
  if (run.data.metrics.empty()) frame.add("no step is done yet");
  add_curve(run, "loss", &Metric::loss, 4, style, frame);
  add_curve(run, "validation", &Metric::val_loss, 4, style, frame);
  add_curve(run, "learning rate", &Metric::learning_rate, 0, style, frame);
  add_curve(run, "tokens/s", &Metric::tokens_per_second, 0, style, frame);
  add_depth_weights(run, style, frame);
  return frame.text();
}

std::string draw_live(const LiveStudy& study, const TextStyle& style) {
  constexpr size_t kNumbers = 2 + 10 + 2 + 13 + 8;  // characters of a line beside name and bar
  constexpr size_t kShortestBar = 8, kLongestBar = 30;
  Frame frame(style);
  frame.add(joined({study.name, study.question}, ": "));
  frame.add(describe_grid(study));
  frame.add(progress_bar(done_share(study), style.columns));
  size_t names = 0;
  for (const LiveStudyRun& run : study.runs) names = std::max(names, characters(run.record.name));
  const size_t room = style.columns > kNumbers ? style.columns - kNumbers : 0;
  names = std::clamp<size_t>(names, 1, std::max<size_t>(room, 1));
  const size_t bar = room >= names + 2 + kShortestBar ? std::min(room - names - 2, kLongestBar) : 0;
  const bool fits = study.runs.size() <= frame.room();
  const std::vector<LiveStudyRun> runs = fits ? study.runs : most_telling_first(study.runs);
  const size_t shown = fits ? runs.size() : frame.room() - 1;
  for (size_t i = 0; i < shown; ++i) frame.add(run_line(runs[i], names, bar));
  if (!fits) frame.add(fmt::format("and {} more", runs.size() - shown));
  return frame.text();
}

}  // namespace attnres
