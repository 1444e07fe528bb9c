#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "attnres/plots/page_parts.h"
#include "attnres/report/speed.h"
#include "attnres/study/study_figures.h"
#include "attnres/support/format.h"

namespace attnres {
namespace {

// Seconds per token of training, and whether that was measured undisturbed.
struct TokenTime {
  double seconds = kNotMeasured;
  bool well_measured = false;
};

TokenTime token_time(const StudyData& data, size_t run) {
  if (data.runs[run]) {
    const Speed speed = measure_speed(data.runs[run]->metrics);
    if (speed.tokens_per_second > 0) return {1 / speed.tokens_per_second, speed.well_measured()};
  }
  const StudyRunRecord& record = data.study.runs[run];
  return {record.tokens > 0 ? record.seconds / record.tokens : kNotMeasured, false};
}

double memory_of(const StudyData& data, size_t run) {
  return data.study.runs[run].peak_bytes;
}

// A quantity over the baseline's, each run over that of the same seed: the geometric mean, and with
// two pairs or more the interval of Student's t for the mean logarithm.
struct CostRatio {
  double ratio = kNotMeasured;
  std::optional<Interval> interval;
};

template <class Quantity>
CostRatio ratio_over_baseline(const StudyData& data, size_t arm, Quantity quantity) {
  std::vector<double> logarithms;
  const auto& baseline = data.arms.baselines[arm];
  if (!baseline || *baseline == arm) return {};
  for (const size_t run : data.arms.arms[arm].runs) {
    for (const size_t other : data.arms.arms[*baseline].runs) {
      if (data.study.runs[run].seed != data.study.runs[other].seed) continue;
      const double logarithm = std::log(quantity(run) / quantity(other));
      if (std::isfinite(logarithm)) logarithms.push_back(logarithm);
    }
  }
  if (logarithms.empty()) return {};
  CostRatio out;
  out.ratio = std::exp(sample_mean(logarithms));
  if (logarithms.size() > 1) {
    const Interval interval = mean_interval(logarithms);
    out.interval = {std::exp(interval.low), std::exp(interval.high)};
  }
  return out;
}

// Mean over the runs that have it.
template <class Quantity>
double mean_over_runs(const Arm& arm, Quantity quantity) {
  std::vector<double> values;
  for (const size_t run : arm.runs) {
    const double value = quantity(run);
    if (std::isfinite(value)) values.push_back(value);
  }
  return values.empty() ? kNotMeasured : sample_mean(values);
}

std::string cost_interval(const CostRatio& ratio) {
  if (!ratio.interval) return kNoValue;
  return fmt::format("{:.3f} to {:.3f}", ratio.interval->low, ratio.interval->high);
}

std::string cost_ratio(const CostRatio& ratio, bool is_baseline) {
  if (is_baseline) return "baseline";
  return std::isnan(ratio.ratio) ? kNoValue : fmt::format("{:.3f} ×", ratio.ratio);
}

struct CostRow {
  std::string label;
  bool is_baseline = false, well_measured = true;
  double seconds = kNotMeasured, bytes = kNotMeasured;
  CostRatio time, memory;
};

std::vector<CostRow> cost_rows(const StudyData& data) {
  std::vector<CostRow> rows;
  for (size_t arm = 0; arm < data.arms.arms.size(); ++arm) {
    const auto seconds = [&](size_t run) { return token_time(data, run).seconds; };
    const auto bytes = [&](size_t run) { return memory_of(data, run); };
    CostRow row{.label = data.arms.arms[arm].label,
                .is_baseline = data.arms.baselines[arm] == arm,
                .seconds = mean_over_runs(data.arms.arms[arm], seconds),
                .bytes = mean_over_runs(data.arms.arms[arm], bytes),
                .time = ratio_over_baseline(data, arm, seconds),
                .memory = ratio_over_baseline(data, arm, bytes)};
    for (const size_t run : data.arms.arms[arm].runs) {
      const TokenTime time = token_time(data, run);
      if (!std::isnan(time.seconds)) row.well_measured = row.well_measured && time.well_measured;
    }
    if (!std::isnan(row.seconds)) rows.push_back(std::move(row));
  }
  return rows;
}

std::string cost_plot(const std::vector<CostRow>& rows, CostRatio CostRow::*quantity,
                      const char* title, const std::string& id) {
  LinePlot plot{.alt = std::string(title) + " over the baseline's",
                .y_label = "times the baseline’s"};
  Curve curve{.style = line_style(0), .kind = Curve::Kind::points};
  for (const CostRow& row : rows) {
    const CostRatio& ratio = row.*quantity;
    if (std::isnan(ratio.ratio)) continue;
    curve.x.push_back(static_cast<double>(plot.x_names.size()));
    curve.y.push_back(ratio.ratio);
    curve.low.push_back(ratio.interval ? ratio.interval->low : kNotMeasured);
    curve.high.push_back(ratio.interval ? ratio.interval->high : kNotMeasured);
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

std::vector<std::string> cost_findings(const std::vector<CostRow>& rows) {
  const auto times = [](const CostRatio& ratio) {
    const std::string interval =
        ratio.interval ? fmt::format(" (95 % interval {})", cost_interval(ratio)) : "";
    return fmt::format("{:.3f} times{}", ratio.ratio, interval);
  };
  std::vector<std::string> findings;
  for (const CostRow& row : rows) {
    if (row.is_baseline || std::isnan(row.time.ratio)) continue;
    std::string finding =
        fmt::format("{} takes {} the baseline’s time per token", row.label, times(row.time));
    if (!std::isnan(row.memory.ratio)) finding += ", and " + times(row.memory) + " its memory";
    findings.push_back(finding + ".");
  }
  return findings;
}

std::string cost_table(const std::vector<CostRow>& rows, bool has_memory) {
  std::vector<std::string> headings;
  std::vector<TableColumn> columns = {
      {"time per token", {}}, {"over the baseline", {}}, {"95 % interval", {}}};
  if (has_memory) {
    for (const char* name : {"memory", "over the baseline", "95 % interval"}) {
      columns.push_back({name, {}});
    }
  }
  for (const CostRow& row : rows) {
    headings.push_back(row_heading(row.label));
    std::vector<std::string> cells = {
        fmt::format("{}{:.2f} µs", row.well_measured ? "" : "≈ ", 1e6 * row.seconds),
        cost_ratio(row.time, row.is_baseline), cost_interval(row.time)};
    if (has_memory) {
      cells.push_back(std::isfinite(row.bytes) ? format_bytes(row.bytes) : kNoValue);
      cells.push_back(cost_ratio(row.memory, row.is_baseline));
      cells.push_back(cost_interval(row.memory));
    }
    for (size_t c = 0; c < cells.size(); ++c) columns[c].cells.push_back(cells[c]);
  }
  return numbers_table("arm", headings, columns);
}

}  // namespace

StudyFigure overhead_figure(const StudyData& data, const std::string& id) {
  const std::vector<CostRow> rows = cost_rows(data);
  if (rows.empty()) return {nothing("No run has logged its speed yet.")};
  const bool has_memory = std::any_of(rows.begin(), rows.end(),
                                      [](const CostRow& row) { return std::isfinite(row.bytes); });
  const std::string plots = cost_plot(rows, &CostRow::time, "Time per token", id + "-time") +
                            cost_plot(rows, &CostRow::memory, "Memory", id + "-memory");
  return {
      cost_table(rows, has_memory) + (plots.empty() ? "" : row_of(plots)) +
          how_to_read(fmt::format(
              "Time per token: of training, median of ten intervals after the first tenth of the "
              "steps; ≈ where fewer than eight of them lie within 5 % of it in some run. Ratios: "
              "geometric mean over seeds, each over the baseline of the same seed, with the "
              "interval of Student’s t for its logarithm.{}",
              has_memory ? " Memory: resident, at its largest."
                         : " study.json does not say how much memory runs took.")),
      cost_findings(rows)};
}

}  // namespace attnres
