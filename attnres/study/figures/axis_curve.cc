#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>

#include "attnres/plots/html.h"
#include "attnres/plots/page_parts.h"
#include "attnres/study/axis_arms.h"
#include "attnres/study/study_figures.h"

namespace attnres {
namespace {

// The interval of two is so wide that nothing else is seen beside it.
constexpr size_t kSeedsForBars = 3;

std::vector<double> losses_of(const Arm& arm) {
  std::vector<double> losses;
  for (const auto& [seed, loss] : arm.losses) losses.push_back(loss);
  return losses;
}

void add_point(Curve& curve, double x, double y, const std::optional<Interval>& interval) {
  curve.x.push_back(x);
  curve.y.push_back(y);
  curve.low.push_back(interval ? interval->low : kNotMeasured);
  curve.high.push_back(interval ? interval->high : kNotMeasured);
}

Curve level(const LineStyle& style, size_t points, double y) {
  return {.x = {0, static_cast<double>(points - 1)},
          .y = {y, y},
          .style = style,
          .kind = Curve::Kind::reference};
}

struct AxisPoint {
  double y = 0;
  std::optional<Interval> interval = {};
};

// Beside the points of the other curves, so that bars don't hide each other.
double place(const AxisArms& all, size_t c, size_t x) {
  const auto curves = static_cast<double>(all.series.size());
  const double step = std::min(0.06, 0.4 / curves);
  return static_cast<double>(x) + step * (static_cast<double>(c) - (curves - 1) / 2);
}

// The curve through the points that its arms have.
Curve curve_through(const AxisArms& all, size_t c,
                    const std::function<std::optional<AxisPoint>(size_t arm)>& point_of) {
  Curve curve{.style = line_style(c)};
  for (size_t x = 0; x < all.names.size(); ++x) {
    const std::optional<size_t>& arm = all.series[c].arms[x];
    const std::optional<AxisPoint> point = arm ? point_of(*arm) : std::nullopt;
    if (point) add_point(curve, place(all, c, x), point->y, point->interval);
  }
  return curve;
}

std::string loss_along(const StudyData& data, const AxisArms& all, const LinePlot& empty,
                       const std::string& id) {
  LinePlot plot = empty;
  plot.alt = "Mean final validation loss";
  plot.y_label = "loss (nats per token)";
  const auto point_of = [&](size_t arm) -> std::optional<AxisPoint> {
    const std::vector<double> losses = losses_of(data.arms.arms[arm]);
    if (losses.empty()) return std::nullopt;
    AxisPoint point = {.y = sample_mean(losses)};
    if (losses.size() >= kSeedsForBars) point.interval = mean_interval(losses);
    return point;
  };
  for (size_t c = 0; c < all.series.size(); ++c) {
    Curve curve = curve_through(all, c, point_of);
    if (curve.x.empty()) continue;
    if (all.baselines[c] && !data.arms.arms[*all.baselines[c]].losses.empty()) {
      plot.curves.push_back(
          level(line_style(c), all.names.size(), data.arms.arms[*all.baselines[c]].mean_loss()));
    }
    plot.curves.push_back(std::move(curve));
  }
  return plot.curves.empty() ? "" : figure("Mean final loss", draw(plot, id + "-loss"));
}

std::string difference_along(const StudyData& data, const AxisArms& all, const LinePlot& empty,
                             const std::string& id) {
  LinePlot plot = empty;
  plot.alt = "Mean difference to the baseline of the same seed";
  plot.y_label = "difference (nats per token)";
  const auto point_of = [&](size_t arm) -> std::optional<AxisPoint> {
    const ArmDifference& difference = data.arms.arms[arm].difference;
    if (data.arms.baselines[arm] == arm || std::isnan(difference.mean)) return std::nullopt;
    AxisPoint point = {.y = difference.mean};
    if (difference.pairs >= kSeedsForBars) point.interval = difference.test->interval;
    return point;
  };
  for (size_t c = 0; c < all.series.size(); ++c) {
    Curve curve = curve_through(all, c, point_of);
    if (!curve.x.empty()) plot.curves.push_back(std::move(curve));
  }
  if (plot.curves.empty()) return "";
  plot.curves.push_back(level({.color = 0x777777, .marker = 0, .dash = {}}, all.names.size(), 0));
  return figure("Minus the baseline’s, seed by seed", draw(plot, id + "-difference"));
}

}  // namespace

StudyFigure curve_figure(const StudyData& data, const Json& options, const std::string& id) {
  const std::string name = axis_asked_for(options);
  const auto axis = data.find_axis(name);
  if (!axis) {
    return {nothing(
        fmt::format("This study has no axis “{}” to draw a curve along.", escape_html(name)))};
  }
  const AxisArms all = arms_along(data, *axis);
  LinePlot empty{.x_label = plain_label(name)};
  for (const std::string& arm : all.names) empty.x_names.push_back(plain_label(arm));
  const std::string loss = all.names.empty() ? "" : loss_along(data, all, empty, id);
  if (loss.empty()) return {nothing("No run along this axis is done yet.")};
  std::vector<LegendEntry> entries;
  bool has_level = false;
  for (size_t c = 0; c < all.series.size(); ++c) {
    entries.push_back({line_style(c), all.series[c].label});
    has_level = has_level || all.baselines[c];
  }
  return {(entries.size() > 1 ? legend(entries) : "") +
          row_of(loss + difference_along(data, all, empty, id)) +
          how_to_read(fmt::format(
              "Bars: 95 % interval of Student’s t over seeds, of one arm by "
              "itself, from three seeds on. What seeds share is in the losses and not in the "
              "differences.{}",
              has_level ? " Dotted: the baseline’s mean." : ""))};
}

}  // namespace attnres
