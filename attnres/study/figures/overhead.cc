#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "attnres/plots/page_parts.h"
#include "attnres/report/speed.h"
#include "attnres/study/study_figures.h"
#include "attnres/support/format.h"

namespace attnres {
namespace {

// Where the ends of a ratio's interval differ by a larger factor, the ratio is not known.
constexpr double kWidestInterval = 2;

// What a run that is done took.
struct RunCost {
  std::string name;
  int64_t seed = 0;
  Speed speed = {};               // by its log
  double seconds = kNotMeasured;  // per token of training
  double bytes = kNotMeasured;    // of memory
};

std::vector<RunCost> costs_of_done(const StudyData& data, const Arm& arm) {
  std::vector<RunCost> costs;
  for (const size_t run : arm.runs) {
    const StudyRunRecord& record = data.study.runs[run];
    if (!record.is_done()) continue;
    RunCost cost{.name = record.name, .seed = record.seed, .bytes = record.peak_bytes};
    if (data.runs[run]) cost.speed = measure_speed(data.runs[run]->metrics);
    cost.seconds = cost.speed.tokens_per_second > 0 ? 1 / cost.speed.tokens_per_second
                                                    : record.seconds / record.tokens;
    if (cost.seconds > 0 && std::isfinite(cost.seconds)) costs.push_back(std::move(cost));
  }
  return costs;
}

// The runs that a row of the table is of, all its columns: an arm's, and the baseline's of the same
// seeds; none of the baseline's where the arm is one, or shares no seed with it.
struct CostRuns {
  std::vector<RunCost> ours, theirs;

  // The first whose speed was not measured well; null where all were.
  const RunCost* disturbed() const {
    for (const auto* runs : {&ours, &theirs}) {
      for (const RunCost& run : *runs) {
        if (!run.speed.well_measured()) return &run;
      }
    }
    return nullptr;
  }
  // Those whose speeds, the baseline's too, were measured well.
  CostRuns undisturbed() const {
    CostRuns kept;
    for (size_t i = 0; i < ours.size(); ++i) {
      if (!ours[i].speed.well_measured()) continue;
      if (!theirs.empty() && !theirs[i].speed.well_measured()) continue;
      kept.ours.push_back(ours[i]);
      if (!theirs.empty()) kept.theirs.push_back(theirs[i]);
    }
    return kept;
  }
};

// Undisturbed ones, or all that are done where there are none.
CostRuns runs_of_row(const StudyData& data, size_t arm) {
  CostRuns all{.ours = costs_of_done(data, data.arms.arms[arm]), .theirs = {}};
  const auto& baseline = data.arms.baselines[arm];
  if (baseline && *baseline != arm) {
    CostRuns pairs;
    for (const RunCost& theirs : costs_of_done(data, data.arms.arms[*baseline])) {
      for (const RunCost& ours : all.ours) {
        if (ours.seed != theirs.seed) continue;
        pairs.ours.push_back(ours);
        pairs.theirs.push_back(theirs);
      }
    }
    if (!pairs.ours.empty()) all = std::move(pairs);
  }
  CostRuns undisturbed = all.undisturbed();
  return undisturbed.ours.empty() ? all : undisturbed;
}

// A quantity of the runs of a row, and what it is over the baseline's: geometric means, and with
// two pairs or more the interval of Student's t for the mean logarithm.
struct Cost {
  double ours = kNotMeasured, theirs = kNotMeasured;
  double ratio = kNotMeasured;  // ours / theirs
  std::optional<Interval> interval = {};

  bool is_too_wide() const { return interval && interval->high > kWidestInterval * interval->low; }
  bool is_told() const { return !std::isnan(ratio) && !is_too_wide(); }
};

Cost cost_of(const CostRuns& runs, double RunCost::*quantity) {
  std::vector<double> ours, theirs, ratios;  // logarithms
  for (size_t i = 0; i < runs.ours.size(); ++i) {
    const double our = std::log(runs.ours[i].*quantity);
    const double their = runs.theirs.empty() ? 0 : std::log(runs.theirs[i].*quantity);
    if (!std::isfinite(our) || !std::isfinite(their)) continue;
    ours.push_back(our);
    if (runs.theirs.empty()) continue;
    theirs.push_back(their);
    ratios.push_back(our - their);
  }
  Cost cost;
  if (!ours.empty()) cost.ours = std::exp(sample_mean(ours));
  if (ratios.empty()) return cost;
  cost.theirs = std::exp(sample_mean(theirs));
  cost.ratio = std::exp(sample_mean(ratios));
  if (ratios.size() > 1) {
    const Interval interval = mean_interval(ratios);
    cost.interval = {std::exp(interval.low), std::exp(interval.high)};
  }
  return cost;
}

struct CostRow {
  std::string label;
  bool is_baseline = false;
  size_t seeds = 0;
  std::string disturbed;  // "block-seed1 was disturbed (...)": then no times are compared; or ""
  Cost time, memory;
};

std::string why_disturbed(const RunCost& run) {
  const bool has_log = !std::isnan(run.speed.tokens_per_second);
  return run.name + " " + (has_log ? why_not_measured(run.speed) : "has no log of its speed");
}

std::vector<CostRow> cost_rows(const StudyData& data) {
  std::vector<CostRow> rows;
  for (size_t arm = 0; arm < data.arms.arms.size(); ++arm) {
    const CostRuns runs = runs_of_row(data, arm);
    if (runs.ours.empty()) continue;
    CostRow& row = rows.emplace_back(CostRow{.label = data.arms.arms[arm].label,
                                             .is_baseline = data.arms.baselines[arm] == arm,
                                             .seeds = runs.ours.size(),
                                             .disturbed = {},
                                             .time = cost_of(runs, &RunCost::seconds),
                                             .memory = cost_of(runs, &RunCost::bytes)});
    if (const RunCost* disturbed = runs.disturbed()) {
      row.disturbed = why_disturbed(*disturbed);
      row.time.ratio = kNotMeasured;
      row.time.interval.reset();
    }
  }
  return rows;
}

std::string interval_words(const Cost& cost) {
  return fmt::format("{:.3f} to {:.3f}", cost.interval->low, cost.interval->high);
}

std::string microseconds(double seconds) {
  return fmt::format("{:.2f} µs", 1e6 * seconds);
}

// "1.043 × 9.20 µs": what the quantity is over the baseline's, and that.
std::string ratio_cell(const Cost& cost, bool is_baseline, std::string (*quantity)(double)) {
  if (is_baseline) return "baseline";
  if (std::isnan(cost.ratio)) return kNoValue;
  if (cost.is_too_wide()) return "unknown";
  return fmt::format("{:.3f} × {}", cost.ratio, quantity(cost.theirs));
}

std::string interval_cell(const Cost& cost) {
  return cost.interval && cost.is_told() ? interval_words(cost) : kNoValue;
}

std::string cost_plot(const std::vector<CostRow>& rows, Cost CostRow::*quantity, const char* title,
                      const std::string& id) {
  LinePlot plot{.alt = std::string(title) + " over the baseline's",
                .y_label = "times the baseline’s"};
  Curve curve{.style = line_style(0), .kind = Curve::Kind::points};
  for (const CostRow& row : rows) {
    const Cost& cost = row.*quantity;
    if (!cost.is_told()) continue;
    curve.x.push_back(static_cast<double>(plot.x_names.size()));
    curve.y.push_back(cost.ratio);
    curve.low.push_back(cost.interval ? cost.interval->low : kNotMeasured);
    curve.high.push_back(cost.interval ? cost.interval->high : kNotMeasured);
    plot.x_names.push_back(plain_label(row.label));
  }
  if (curve.x.empty()) return "";
  const double last = curve.x.back();
  plot.curves = {std::move(curve),
                 {.x = {0, std::max(last, 1e-3)},
                  .y = {1, 1},
                  .style = {.color = 0x777777, .marker = 0, .dash = {}},
                  .kind = Curve::Kind::reference}};
  return figure(title, draw(plot, id));
}

// "1.043 times (95 % interval 1.031 to 1.055)"
std::string times_words(const Cost& cost) {
  return fmt::format("{:.3f} times ({})", cost.ratio,
                     cost.interval ? "95 % interval " + interval_words(cost) : "one seed");
}

// What is known of it over the baseline's, in a sentence; empty where nothing was measured.
std::string cost_sentence(const CostRow& row, const Cost& cost, const char* quantity) {
  if (cost.is_too_wide()) {
    return fmt::format(
        "What {} takes of the baseline’s {} is unknown: {} tell it to no better than a factor of "
        "{:g}.",
        row.label, quantity, counted(static_cast<int64_t>(row.seeds), "seed"), kWidestInterval);
  }
  if (std::isnan(cost.ratio)) return "";
  return fmt::format("{} takes {} the baseline’s {}.", row.label, times_words(cost), quantity);
}

std::vector<std::string> cost_findings(const std::vector<CostRow>& rows) {
  std::vector<std::string> findings;
  for (const CostRow& row : rows) {
    if (row.is_baseline || std::isnan(row.time.theirs)) continue;
    std::string finding = cost_sentence(row, row.time, "time per token");
    if (!row.disturbed.empty()) {
      finding = fmt::format(
          "The speeds of {} and the baseline were not measured well enough to compare: {}.",
          row.label, row.disturbed);
    }
    const std::string memory = cost_sentence(row, row.memory, "memory");
    findings.push_back(finding + (memory.empty() ? "" : " " + memory));
  }
  return findings;
}

std::string cost_table(const std::vector<CostRow>& rows, bool has_memory) {
  constexpr const char* kOver = "ratio × baseline";
  std::vector<std::string> headings;
  std::vector<TableColumn> columns = {
      {"seeds", {}}, {"time per token", {}}, {kOver, {}}, {"95 % interval", {}}};
  if (has_memory) {
    for (const char* name : {"memory", kOver, "95 % interval"}) columns.push_back({name, {}});
  }
  for (const CostRow& row : rows) {
    headings.push_back(row_heading(row.label));
    std::vector<std::string> cells = {
        std::to_string(row.seeds),
        (row.disturbed.empty() ? "" : "≈ ") + microseconds(row.time.ours),
        ratio_cell(row.time, row.is_baseline, microseconds), interval_cell(row.time)};
    if (has_memory) {
      cells.push_back(std::isnan(row.memory.ours) ? kNoValue : format_bytes(row.memory.ours));
      cells.push_back(ratio_cell(row.memory, row.is_baseline, format_bytes));
      cells.push_back(interval_cell(row.memory));
    }
    for (size_t c = 0; c < cells.size(); ++c) columns[c].cells.push_back(cells[c]);
  }
  return numbers_table("arm", headings, columns);
}

}  // namespace

StudyFigure overhead_figure(const StudyData& data, const std::string& id) {
  const std::vector<CostRow> rows = cost_rows(data);
  if (rows.empty()) return {nothing("No run that is done has logged its speed.")};
  const bool has_memory = std::any_of(
      rows.begin(), rows.end(), [](const CostRow& row) { return std::isfinite(row.memory.ours); });
  const std::string plots = cost_plot(rows, &CostRow::time, "Time per token", id + "-time") +
                            cost_plot(rows, &CostRow::memory, "Memory", id + "-memory");
  StudyFigure made;
  made.html =
      cost_table(rows, has_memory) + (plots.empty() ? "" : row_of(plots)) +
      how_to_read(fmt::format(
          "Time per token: of training, median of ten intervals after the first tenth of the "
          "steps; measured well where eight of them lie within 5 % of it. A row is of runs that "
          "are done, and of the baseline’s of the same seeds: of those that were both measured "
          "well, or, where there are none, of all; then its time is marked ≈ and not compared. "
          "Geometric means over these seeds, with the interval of Student’s t for the ratio’s "
          "logarithm; unknown where its ends differ by more than a factor of {:g}.{}",
          kWidestInterval,
          has_memory ? " Memory: resident, at its largest."
                     : " study.json does not say how much memory runs took."));
  made.costs = cost_findings(rows);
  return made;
}

}  // namespace attnres
