#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "attnres/plots/html.h"
#include "attnres/plots/page_parts.h"
#include "attnres/study/axis_arms.h"
#include "attnres/study/study_figures.h"

namespace attnres {
namespace {

constexpr size_t kLongestRowName = 34;
constexpr size_t kPairsForInterval =
    3;  // that of two is so wide that nothing else is seen beside it

bool is_compared(const StudyArms& arms, const std::optional<size_t>& arm) {
  return arm && arms.baselines[*arm] != *arm && !std::isnan(arms.arms[*arm].difference.mean);
}

ForestPlot::Mean mean_of(const StudyArms& arms, size_t arm, size_t row) {
  const ArmDifference& difference = arms.arms[arm].difference;
  ForestPlot::Mean mean{.row = row, .mean = difference.mean};
  if (difference.pairs > 1) {
    mean.values = pair_up(arms.arms[arm], arms.arms[*arms.baselines[arm]]).differences;
  }
  if (difference.pairs >= kPairsForInterval) {
    mean.low = difference.test->interval.low;
    mean.high = difference.test->interval.high;
  }
  return mean;
}

}  // namespace

StudyFigure forest_figure(const StudyData& data, const Json& options, const std::string& id) {
  const std::string name = axis_asked_for(options);
  const auto axis = data.find_axis(name);
  if (!axis) {
    return {
        nothing(fmt::format("This study has no axis “{}” to compare arms of.", escape_html(name)))};
  }
  const AxisArms all = arms_along(data, *axis);
  ForestPlot plot{.alt = "Difference of each arm to its baseline",
                  .x_label = "difference (nats per token)"};
  std::vector<size_t> rows;  // along the axis
  for (size_t at = 0; at < all.names.size(); ++at) {
    if (std::none_of(all.series.begin(), all.series.end(), [&](const AxisSeries& series) {
          return is_compared(data.arms, series.arms[at]);
        })) {
      continue;
    }
    rows.push_back(at);
    plot.rows.push_back(plain_label(all.names[at], kLongestRowName));
  }
  if (rows.empty()) {
    return {nothing("No arm along this axis has a seed that its baseline has too.")};
  }
  std::vector<LegendEntry> entries;
  for (const AxisSeries& along : all.series) {
    ForestPlot::Series series{.style = line_style(entries.size())};
    for (size_t row = 0; row < rows.size(); ++row) {
      const std::optional<size_t>& arm = along.arms[rows[row]];
      if (is_compared(data.arms, arm)) series.means.push_back(mean_of(data.arms, *arm, row));
    }
    if (series.means.empty()) continue;
    entries.push_back({series.style, along.label});
    plot.series.push_back(std::move(series));
  }
  return {(entries.size() > 1 ? legend(entries) : "") +
          figure("Minus the baseline’s loss, seed by seed", draw(plot, id)) +
          how_to_read("Left of the line an arm ends lower than its baseline. Pale: single seeds; "
                      "bars: 95 % interval of Student’s t, of one arm by itself, from three seeds "
                      "on; an arrow where there is more beyond the plot.")};
}

}  // namespace attnres
