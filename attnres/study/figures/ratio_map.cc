#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "attnres/study/html.h"
#include "attnres/study/page_parts.h"
#include "attnres/study/study_figures.h"

namespace attnres {
namespace {

// Rounding to whole heads and layers moves a ratio by less than this; cells of a grid lie further
// apart.
constexpr double kSameRatio = 1.1;

struct ShapePoint {
  std::string map;  // which of the maps it is on
  double width_ratio = 0, head_ratio = 0;
  double loss = 0;  // mean over seeds
};

double model_number(const RunData& run, const char* key) {
  const Json* value = find(run.record, std::string("/recipe/model/") + key);
  return value && value->is_number() ? value->get<double>() : kNotMeasured;
}

std::vector<ShapePoint> shape_points(const StudyData& data) {
  std::vector<ShapePoint> points;
  const auto axis = data.find_axis(data.arms.baseline_axis);
  for (size_t arm = 0; arm < data.arms.arms.size(); ++arm) {
    const auto run = data.shown_run(arm);
    if (!run || data.arms.arms[arm].losses.empty()) continue;
    const double layers = model_number(*data.runs[*run], "layers");
    const ShapePoint point = {.map = axis ? data.arms.names[arm][*axis] : data.study.name,
                              .width_ratio = model_number(*data.runs[*run], "width") / layers,
                              .head_ratio = model_number(*data.runs[*run], "heads") / layers,
                              .loss = data.arms.arms[arm].mean_loss()};
    if (point.width_ratio > 0 && point.head_ratio > 0) points.push_back(point);
  }
  return points;
}

// Groups of ratios that are one to rounding, ascending, by their means.
std::vector<double> ratio_groups(std::vector<double> ratios) {
  std::sort(ratios.begin(), ratios.end());
  std::vector<std::vector<double>> groups;
  for (const double ratio : ratios) {
    if (groups.empty() || ratio > kSameRatio * groups.back().back()) groups.emplace_back();
    groups.back().push_back(ratio);
  }
  std::vector<double> means;
  for (const auto& group : groups) means.push_back(sample_mean(group));
  return means;
}

size_t nearest_group(const std::vector<double>& groups, double ratio) {
  const auto distance = [&](double group) { return std::abs(std::log(group / ratio)); };
  return static_cast<size_t>(
      std::min_element(groups.begin(), groups.end(),
                       [&](double a, double b) { return distance(a) < distance(b); }) -
      groups.begin());
}

// Columns are width over layers, rows heads over layers, the largest at the top.
HeatMap shape_map(const std::vector<ShapePoint>& points, const std::vector<double>& widths,
                  const std::vector<double>& heads) {
  HeatMap map{
      .x_label = "width / layers (Transformer layers)", .y_label = "heads / layers", .decimals = 3};
  for (const double width : widths) map.column_names.push_back(fmt::format("{:.3g}", width));
  for (const double head : heads) {
    map.row_names.insert(map.row_names.begin(), fmt::format("{:.2g}", head));
  }
  std::map<std::pair<size_t, size_t>, std::vector<double>> cells;
  for (const ShapePoint& point : points) {
    const size_t row = heads.size() - 1 - nearest_group(heads, point.head_ratio);
    cells[{row, nearest_group(widths, point.width_ratio)}].push_back(point.loss);
  }
  map.values.assign(heads.size(), std::vector<double>(widths.size(), kNotMeasured));
  map.outlined.assign(heads.size(), std::vector<bool>(widths.size(), false));
  std::pair<size_t, size_t> best;
  double least = INFINITY;
  for (const auto& [cell, losses] : cells) {
    const double loss = map.values[cell.first][cell.second] = sample_mean(losses);
    if (loss >= least) continue;
    least = loss;
    best = cell;
  }
  map.outlined[best.first][best.second] = true;
  return map;
}

}  // namespace

std::string ratio_figure(const StudyData& data, const std::string& id) {
  const std::vector<ShapePoint> points = shape_points(data);
  if (points.empty()) return nothing("No run with a width, heads and layers is done yet.");
  std::vector<double> widths, heads;
  std::vector<std::string> names;
  std::map<std::string, std::vector<ShapePoint>> maps;
  double low = INFINITY, high = -INFINITY;
  for (const ShapePoint& point : points) {
    widths.push_back(point.width_ratio);
    heads.push_back(point.head_ratio);
    low = std::min(low, point.loss);
    high = std::max(high, point.loss);
    if (!maps.contains(point.map)) names.push_back(point.map);
    maps[point.map].push_back(point);
  }
  if (high <= low) high = low + 1e-3;
  widths = ratio_groups(widths);
  heads = ratio_groups(heads);
  std::string panels, sentences;
  for (size_t i = 0; i < names.size(); ++i) {
    const std::vector<ShapePoint>& shown = maps[names[i]];
    HeatMap map = shape_map(shown, widths, heads);
    map.alt = "Mean final loss of " + names[i] + " by shape";
    map.low = low;
    map.high = high;
    const std::string label = "<bdi>" + escape_html(names[i]) + "</bdi>";
    panels += figure(label, draw(map, fmt::format("{}-{}", id, i)));
    const auto best =
        std::min_element(shown.begin(), shown.end(),
                         [](const ShapePoint& a, const ShapePoint& b) { return a.loss < b.loss; });
    sentences += fmt::format(
        "<li>{}: least loss {} at {:.3g} channels and {:.2g} heads per Transformer layer.</li>\n",
        label, format_loss(best->loss), best->width_ratio, best->head_ratio);
  }
  return "<ul>" + sentences + "</ul>\n" + row_of(panels) +
         how_to_read(fmt::format("Mean final validation loss {} "
                                 "<span class=\"outlined\"></span> the least of its map. Ratios "
                                 "that rounding alone tells apart share a cell.",
                                 heat_legend(low, high, 3)));
}

}  // namespace attnres
