#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "attnres/plots/page_parts.h"
#include "attnres/report/power_law.h"
#include "attnres/study/axis_arms.h"
#include "attnres/study/study_figures.h"
#include "attnres/support/error.h"

namespace attnres {
namespace {

constexpr uint64_t kFitSeed = 1;

// One run that is done, for pairs.
struct ScalingRun {
  std::string size;
  int64_t seed = 0;
  ScalingPoint point;

  bool pairs_with(const ScalingRun& other) const {
    return size == other.size && seed == other.seed;
  }
};

struct ScalingSeries {
  std::string label;
  std::vector<ScalingRun> runs;
  std::optional<size_t> baseline;  // the series it is compared with
  std::optional<PowerLawFit> fit;
  std::optional<ComputeAdvantage> advantage;  // over the baseline, where both have a line
  std::string no_advantage;                   // why there is none though both have

  std::vector<ScalingPoint> points() const {
    std::vector<ScalingPoint> out;
    for (const ScalingRun& run : runs) out.push_back(run.point);
    return out;
  }
  size_t budgets() const {
    std::set<double> distinct;
    for (const ScalingRun& run : runs) distinct.insert(std::log(run.point.compute));
    return distinct.size();
  }
};

// By how much FLOPs vary along an axis, all else equal.
double spread_along(const StudyData& data, size_t axis) {
  double spread = 1;
  std::map<std::vector<std::string>, std::pair<double, double>> ends;  // least and most
  for (size_t arm = 0; arm < data.arms.arms.size(); ++arm) {
    std::vector<std::string> others = data.arms.names[arm];
    others[axis].clear();
    auto& [low, high] = ends.try_emplace(std::move(others), INFINITY, 0).first->second;
    const double flops = data.study.runs[data.arms.arms[arm].runs.front()].flops;
    low = std::min(low, flops);
    high = std::max(high, flops);
    if (high > low) spread = std::max(spread, high / low);
  }
  return spread;
}

// The axis whose arms are the budgets.
std::optional<size_t> budget_axis(const StudyData& data, const Json& options) {
  if (const std::string x = axis_asked_for(options); !x.empty()) return data.find_axis(x);
  std::optional<size_t> best;
  double widest = 1;
  for (size_t axis = 0; axis < data.study.axes.size(); ++axis) {
    if (data.study.axes[axis] == data.arms.baseline_axis) continue;
    const double spread = spread_along(data, axis);
    if (spread <= widest) continue;
    widest = spread;
    best = axis;
  }
  return best;
}

// The series of arms that are alike but for their size.
ScalingSeries series_of(const StudyData& data, std::vector<std::string> names, size_t axis,
                        const std::vector<std::string>& sizes) {
  ScalingSeries series;
  for (const std::string& size : sizes) {
    names[axis] = size;
    const auto arm = find_arm(data.arms, data.study, names);
    if (!arm) continue;
    if (series.label.empty() || data.arms.names[*arm] == names) {
      series.label = data.label_without(*arm, axis);
    }
    for (const size_t i : data.arms.arms[*arm].runs) {
      const StudyRunRecord& run = data.study.runs[i];
      if (!run.is_done() || !(run.flops > 0) || !(run.final_val_loss > 0)) continue;
      series.runs.push_back({size, run.seed, {run.flops, run.final_val_loss}});
    }
  }
  return series;
}

std::vector<ScalingSeries> all_series(const StudyData& data, size_t axis) {
  std::vector<ScalingSeries> all;
  std::vector<std::vector<std::string>> keys;
  std::vector<std::optional<size_t>> baseline_arms;
  const std::vector<std::string> sizes = data.arms_of(axis);
  const auto key_of = [&](size_t arm) {
    std::vector<std::string> key = data.arms.names[arm];
    key[axis].clear();
    return key;
  };
  for (size_t arm = 0; arm < data.arms.arms.size(); ++arm) {
    if (std::find(keys.begin(), keys.end(), key_of(arm)) != keys.end()) continue;
    keys.push_back(key_of(arm));
    baseline_arms.push_back(data.arms.baselines[arm]);
    require_grid(keys.size(), sizes.size());
    all.push_back(series_of(data, data.arms.names[arm], axis, sizes));
  }
  for (size_t i = 0; i < all.size(); ++i) {
    if (!baseline_arms[i]) continue;
    const auto found = std::find(keys.begin(), keys.end(), key_of(*baseline_arms[i]));
    all[i].baseline = static_cast<size_t>(found - keys.begin());
  }
  return all;
}

// The runs of both with the same size and seed, in one order; all of each where some have none.
ComputeAdvantage advantage_over(const ScalingSeries& baseline, const ScalingSeries& series,
                                double budget) {
  std::vector<ScalingPoint> ours, theirs;
  for (const ScalingRun& run : series.runs) {
    for (const ScalingRun& other : baseline.runs) {
      if (!run.pairs_with(other)) continue;
      ours.push_back(run.point);
      theirs.push_back(other.point);
    }
  }
  if (ours.size() == series.runs.size() && ours.size() == baseline.runs.size()) {
    return compute_advantage(ours, theirs, budget, kFitSeed, ScalingPairs::yes);
  }
  return compute_advantage(series.points(), baseline.points(), budget, kFitSeed);
}

std::string scaling_interval(const Interval& interval) {
  return fmt::format("{:.4f} to {:.4f}", interval.low, interval.high);
}

// "1.25", "> 100"
std::string times(double factor) {
  return factor > 100 ? "> 100" : fmt::format("{:.2f}", factor);
}

// What an interval of the advantage says of 1 and of the report's 1.25.
std::string tells_what(const Interval& interval) {
  const auto has = [&](double value) { return interval.low <= value && value <= interval.high; };
  if (has(1) && has(1.25)) return "so these runs do not tell 1.25 from 1";
  if (has(1.25)) return "which excludes 1 and agrees with the report’s 1.25 for Block";
  if (has(1)) return "which includes 1 and excludes the report’s 1.25 for Block";
  if (interval.high < 1) return "which lies below 1: the baseline needs less";
  return fmt::format("which excludes 1 and lies {} the report’s 1.25 for Block",
                     interval.low > 1.25 ? "above" : "below");
}

// What there is to fit and compare: lines where there are budgets enough, C in `unit` FLOPs.
struct ScalingLaw {
  std::vector<ScalingSeries> all;
  // A power of ten near the largest budget, where A, the loss at one unit, says something.
  double unit = 1;
  double budget = 0;  // the largest, in units; 0 where no run is done
};

// Where there are budgets enough, and losses that a line can be drawn through.
void fit(ScalingSeries& series) {
  if (series.budgets() < 3) return;
  try {
    series.fit = fit_power_law(series.points(), kFitSeed);
  } catch (const Error&) {  // it stays without a line
  }
}

void compare_with_baseline(ScalingLaw& law, size_t i) {
  ScalingSeries& series = law.all[i];
  if (!series.fit || !series.baseline || *series.baseline == i) return;
  const ScalingSeries& baseline = law.all[*series.baseline];
  if (!baseline.fit) return;
  try {
    series.advantage = advantage_over(baseline, series, law.budget);
  } catch (const Error& error) {
    series.no_advantage = error.what();
  }
}

ScalingLaw scaling_law(const StudyData& data, size_t axis) {
  ScalingLaw law{.all = all_series(data, axis)};
  for (const ScalingSeries& series : law.all) {
    for (const ScalingRun& run : series.runs) law.budget = std::max(law.budget, run.point.compute);
  }
  if (law.budget == 0) return law;
  law.unit = std::pow(10, std::floor(std::log10(law.budget)));
  law.budget /= law.unit;
  for (ScalingSeries& series : law.all) {
    for (ScalingRun& run : series.runs) run.point.compute /= law.unit;
    fit(series);
  }
  for (size_t i = 0; i < law.all.size(); ++i) compare_with_baseline(law, i);
  return law;
}

std::string interval_of_times(const Interval& interval) {
  return times(interval.low) + " to " + times(interval.high);
}

struct ScalingTable {
  std::vector<std::string> headings;
  std::vector<TableColumn> columns;
};

ScalingTable scaling_table(const ScalingLaw& law) {
  ScalingTable table;
  for (const char* name :
       {"runs", "A", "95 % interval", "α", "95 % interval", "advantage", "95 % interval"}) {
    table.columns.push_back({name, {}});
  }
  for (size_t i = 0; i < law.all.size(); ++i) {
    const ScalingSeries& series = law.all[i];
    if (!series.fit) continue;
    const PowerLawFit& fit = *series.fit;
    std::string factor = series.baseline == i ? "1" : kNoValue, interval = kNoValue;
    if (series.advantage) {
      factor = times(series.advantage->factor);
      interval = interval_of_times(series.advantage->interval);
    }
    table.headings.push_back(row_heading(series.label));
    const std::vector<std::string> cells = {std::to_string(series.runs.size()),
                                            fmt::format("{:.4f}", fit.law.a),
                                            scaling_interval(fit.a),
                                            fmt::format("{:.4f}", fit.law.alpha),
                                            scaling_interval(fit.alpha),
                                            factor,
                                            interval};
    for (size_t c = 0; c < cells.size(); ++c) table.columns[c].cells.push_back(cells[c]);
  }
  return table;
}

std::string scaling_plot(const std::vector<ScalingSeries>& all, double unit,
                         const std::string& id) {
  LinePlot plot{.alt = "Final validation loss against FLOPs, both logarithmic",
                .x_label = "FLOPs of training",
                .y_label = "loss (nats per token)",
                .log_x = true,
                .log_y = true};
  for (size_t i = 0; i < all.size(); ++i) {
    Curve points{.style = line_style(i), .kind = Curve::Kind::points};
    double low = INFINITY, high = 0;
    for (const ScalingRun& run : all[i].runs) {
      points.x.push_back(run.point.compute * unit);
      points.y.push_back(run.point.loss);
      low = std::min(low, run.point.compute);
      high = std::max(high, run.point.compute);
    }
    if (points.x.empty()) continue;
    if (all[i].fit) {
      Curve line{.style = line_style(i), .kind = Curve::Kind::fit};
      for (const double x : {low, std::sqrt(low * high), high}) {
        line.x.push_back(x * unit);
        line.y.push_back(all[i].fit->law.loss(x));
      }
      plot.curves.push_back(std::move(line));
    }
    plot.curves.push_back(std::move(points));
  }
  return row_of(figure("Final validation loss against compute", draw(plot, id)));
}

std::vector<std::string> scaling_findings(const ScalingLaw& law) {
  std::vector<std::string> findings;
  for (const ScalingSeries& series : law.all) {
    if (series.advantage) {
      findings.push_back(fmt::format(
          "At the largest budget {} needs {} times the compute for the loss of {}: "
          "95 % interval {}, {}.",
          law.all[*series.baseline].label, times(series.advantage->factor), series.label,
          interval_of_times(series.advantage->interval), tells_what(series.advantage->interval)));
    } else if (!series.no_advantage.empty()) {
      findings.push_back(series.label + ": " + series.no_advantage);
    }
  }
  return findings;
}

}  // namespace

StudyFigure scaling_law_figure(const StudyData& data, const Json& options, const std::string& id) {
  const auto axis = budget_axis(data, options);
  if (!axis) return {nothing("No axis of this study varies the FLOPs of a run.")};
  const ScalingLaw law = scaling_law(data, *axis);
  if (law.budget == 0) return {nothing("No run with FLOPs and a final loss is done yet.")};
  std::vector<std::string> too_few;
  std::vector<LegendEntry> entries;
  for (size_t i = 0; i < law.all.size(); ++i) {
    if (!law.all[i].runs.empty()) entries.push_back({line_style(i), law.all[i].label});
    if (!law.all[i].fit) too_few.push_back(law.all[i].label);
  }
  const ScalingTable table = scaling_table(law);
  std::string out = legend(entries) + scaling_plot(law.all, law.unit, id);
  if (!table.headings.empty()) {
    out += numbers_table("arm", table.headings, table.columns) +
           how_to_read(fmt::format(
               "Lines: L = A C<sup>−α</sup>, least squares in log-log over all runs, C in "
               "10{} FLOPs. Advantage: how many times the compute the baseline needs for the "
               "loss of the arm’s line at the largest budget; the report has 1.25 for Block "
               "(Fig. 4). Intervals: bootstrap of residuals, of runs with equal size and seed "
               "together.",
               superscript(static_cast<int>(std::lround(std::log10(law.unit))))));
  }
  return {out + left_out(too_few, "no line: a fit needs three budgets at least"),
          scaling_findings(law)};
}

}  // namespace attnres
