#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "attnres/plots/html.h"
#include "attnres/plots/page_parts.h"
#include "attnres/study/study_figures.h"
#include "attnres/support/told_numbers.h"

namespace attnres {
namespace {

// Rounding to whole heads and layers moves a ratio by less than this; cells of a grid lie further
// apart.
constexpr double kSameRatio = 1.1;

struct ShapePoint {
  std::string map;  // which of the maps it is on
  double width_ratio = 0, head_ratio = 0;
  double loss = 0;        // mean over seeds
  double difference = 0;  // of it to the baseline's at the same shape; NaN of a baseline
};

double model_number(const RunData& run, const char* key) {
  return measured_at(find(run.record, std::string("/recipe/model/") + key));
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
                              .loss = data.arms.arms[arm].mean_loss(),
                              .difference = data.arms.arms[arm].difference.mean};
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

// Values of all shapes, ascending.
struct ShapeGrid {
  std::vector<double> widths, heads;
};

ShapeGrid grid_of(const std::vector<ShapePoint>& points) {
  std::vector<double> widths, heads;
  for (const ShapePoint& point : points) {
    widths.push_back(point.width_ratio);
    heads.push_back(point.head_ratio);
  }
  return {ratio_groups(std::move(widths)), ratio_groups(std::move(heads))};
}

// Columns are width over layers, rows heads over layers, the largest at the top.
HeatMap shape_map(const std::vector<ShapePoint>& points, const ShapeGrid& grid,
                  double ShapePoint::*quantity) {
  HeatMap map{
      .x_label = "width / layers (Transformer layers)", .y_label = "heads / layers", .decimals = 3};
  for (const double width : grid.widths) map.column_names.push_back(fmt::format("{:.3g}", width));
  for (const double head : grid.heads) {
    map.row_names.insert(map.row_names.begin(), fmt::format("{:.2g}", head));
  }
  std::map<std::pair<size_t, size_t>, std::vector<double>> cells;
  for (const ShapePoint& point : points) {
    const size_t row = grid.heads.size() - 1 - nearest_group(grid.heads, point.head_ratio);
    cells[{row, nearest_group(grid.widths, point.width_ratio)}].push_back(point.*quantity);
  }
  map.values.assign(grid.heads.size(), std::vector<double>(grid.widths.size(), kNotMeasured));
  for (const auto& [cell, values] : cells) {
    map.values[cell.first][cell.second] = sample_mean(values);
  }
  return map;
}

void outline_least(HeatMap& map) {
  double least = INFINITY;
  std::pair<size_t, size_t> place;
  for (size_t row = 0; row < map.values.size(); ++row) {
    map.outlined.emplace_back(map.values[row].size(), false);
    for (size_t column = 0; column < map.values[row].size(); ++column) {
      if (!(map.values[row][column] < least)) continue;  // nor where it is blank
      least = map.values[row][column];
      place = {row, column};
    }
  }
  if (least < INFINITY) map.outlined[place.first][place.second] = true;
}

// In the order of their names' first points.
std::vector<std::vector<ShapePoint>> by_map(const std::vector<ShapePoint>& points) {
  std::vector<std::vector<ShapePoint>> maps;
  for (const ShapePoint& point : points) {
    auto map = std::find_if(maps.begin(), maps.end(),
                            [&](const auto& other) { return other.front().map == point.map; });
    if (map == maps.end()) map = maps.emplace(maps.end());
    map->push_back(point);
  }
  return maps;
}

// Those of them that are compared.
std::vector<ShapePoint> with_difference(std::vector<ShapePoint> points) {
  std::erase_if(points, [](const ShapePoint& point) { return std::isnan(point.difference); });
  return points;
}

std::string label_of(const std::string& map) {
  return "<bdi>" + escape_html(map) + "</bdi>";
}

std::string loss_maps(const std::vector<std::vector<ShapePoint>>& maps, const ShapeGrid& grid,
                      const std::string& id) {
  double low = INFINITY, high = -INFINITY;
  for (const auto& points : maps) {
    for (const ShapePoint& point : points) {
      low = std::min(low, point.loss);
      high = std::max(high, point.loss);
    }
  }
  if (high <= low) high = low + 1e-3;
  std::string panels;
  for (size_t i = 0; i < maps.size(); ++i) {
    const std::string& name = maps[i].front().map;
    HeatMap map = shape_map(maps[i], grid, &ShapePoint::loss);
    outline_least(map);
    map.alt = "Mean final loss of " + name + " by shape";
    map.low = low;
    map.high = high;
    panels += figure(label_of(name), draw(map, fmt::format("{}-{}", id, i)));
  }
  return row_of(panels) +
         how_to_read(fmt::format("Mean final validation loss {} "
                                 "<span class=\"outlined\"></span> the least of its map. Ratios "
                                 "that rounding alone tells apart share a cell.",
                                 heat_legend(low, high, 3)));
}

std::string difference_maps(const std::vector<std::vector<ShapePoint>>& maps, const ShapeGrid& grid,
                            const std::string& baseline, const std::string& id) {
  double largest = 1e-3;
  for (const auto& points : maps) {
    for (const ShapePoint& point : with_difference(points)) {
      largest = std::max(largest, std::abs(point.difference));
    }
  }
  std::string panels;
  for (size_t i = 0; i < maps.size(); ++i) {
    const std::vector<ShapePoint> points = with_difference(maps[i]);
    if (points.empty()) continue;
    const std::string name = points.front().map + " minus " + baseline;
    HeatMap map = shape_map(points, grid, &ShapePoint::difference);
    map.alt = "Mean final loss of " + name + " by shape";
    map.low = -largest;
    map.high = largest;
    panels += figure(label_of(name), draw(map, fmt::format("{}-difference-{}", id, i)));
  }
  if (panels.empty()) return "";
  return row_of(panels) +
         how_to_read(
             "Difference of the mean final validation losses, over the seeds that both "
             "have; negative is lower. " +
             heat_legend(-largest, largest, 3));
}

std::string least_finding(const StudyData& data, const std::vector<ShapePoint>& points) {
  const auto best =
      std::min_element(points.begin(), points.end(),
                       [](const ShapePoint& a, const ShapePoint& b) { return a.loss < b.loss; });
  std::string finding =
      fmt::format("{}: least loss {} at width / layers {:.3g} and heads / layers {:.2g}", best->map,
                  format_loss(best->loss), best->width_ratio, best->head_ratio);
  std::vector<double> differences;
  for (const ShapePoint& point : with_difference(points)) differences.push_back(point.difference);
  if (differences.size() < 2) return finding + ".";
  const Interval interval = mean_interval(differences);
  const auto lower = std::count_if(differences.begin(), differences.end(),
                                   [](double difference) { return difference < 0; });
  return fmt::format(
      "{}; lower than {} at {} of {} shapes, by {} on average (95 % interval {} to {}, of the "
      "shapes’ means).",
      finding, data.arms.baseline_label, lower, differences.size(),
      format_loss(sample_mean(differences), true), format_loss(interval.low, true),
      format_loss(interval.high, true));
}

}  // namespace

StudyFigure ratio_figure(const StudyData& data, const std::string& id) {
  const std::vector<ShapePoint> points = shape_points(data);
  if (points.empty()) return {nothing("No run with a width, heads and layers is done yet.")};
  const std::vector<std::vector<ShapePoint>> maps = by_map(points);
  const ShapeGrid grid = grid_of(points);
  StudyFigure made{loss_maps(maps, grid, id) +
                   difference_maps(maps, grid, data.arms.baseline_label, id)};
  for (const auto& of_map : maps) made.findings.push_back(least_finding(data, of_map));
  return made;
}

}  // namespace attnres
