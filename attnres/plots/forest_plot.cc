#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "attnres/plots/gnuplot.h"
#include "attnres/plots/plot.h"
#include "attnres/support/error.h"

namespace attnres {
namespace {

using gnuplot::quote;
using gnuplot::rgb;

struct Reach {
  double low = 0, high = 0;
  double width() const { return high - low; }
};

std::vector<double> numbers_of(const ForestPlot::Mean& mean) {
  std::vector<double> numbers = mean.values;
  numbers.insert(numbers.end(), {mean.mean, mean.low, mean.high});
  std::erase_if(numbers, [](double number) { return !std::isfinite(number); });
  return numbers;
}

// As far as all rows reach, but no farther than twice the third quartile of theirs, so that a
// single wide interval leaves the others legible.
Reach reach_of(const ForestPlot& plot) {
  std::vector<double> farthest, all;
  for (const ForestPlot::Series& series : plot.series) {
    for (const ForestPlot::Mean& mean : series.means) {
      if (!std::isfinite(mean.mean)) continue;
      farthest.push_back(0);
      for (const double number : numbers_of(mean)) {
        farthest.back() = std::max(farthest.back(), std::abs(number));
        all.push_back(number);
      }
    }
  }
  require(!all.empty(), "plot \"{}\": it has no finite point", plot.alt);
  std::sort(farthest.begin(), farthest.end());
  const double most = 2 * farthest[farthest.size() * 3 / 4];
  const auto [low, high] = std::minmax_element(all.begin(), all.end());
  Reach reach = {std::min(0.0, std::max(*low, -most)), std::max(0.0, std::min(*high, most))};
  const double slack = reach.width() > 0 ? 0.03 * reach.width() : 1;
  return {reach.low - slack, reach.high + slack};
}

// The points of one series, as gnuplot reads them. It leaves out what is beyond the reach; arrows
// say so.
struct SeriesData {
  std::string means, intervals, values, arrows;
};

SeriesData data_of(const ForestPlot::Series& series, double offset, const Reach& reach) {
  constexpr double kBelow = 0.17;  // of a row, single values
  const double arrow = 0.03 * reach.width();
  SeriesData data;
  for (const ForestPlot::Mean& mean : series.means) {
    if (!std::isfinite(mean.mean)) continue;
    const double y = static_cast<double>(mean.row) + offset;
    data.means += fmt::format("{:.9g} {:.9g}\n", mean.mean, y);
    for (const double value : mean.values) {
      data.values += fmt::format("{:.9g} {:.9g}\n", value, y + kBelow);
    }
    if (std::isfinite(mean.low) && std::isfinite(mean.high)) {
      data.intervals +=
          fmt::format("{:.9g} {:.9g} {:.9g} {:.9g}\n", mean.mean, y, mean.low, mean.high);
    }
    const std::vector<double> numbers = numbers_of(mean);
    const auto [low, high] = std::minmax_element(numbers.begin(), numbers.end());
    if (*low < reach.low) {
      data.arrows += fmt::format("{:.9g} {:.9g} {:.9g} 0\n", reach.low + arrow, y, -arrow);
    }
    if (*high > reach.high) {
      data.arrows += fmt::format("{:.9g} {:.9g} {:.9g} 0\n", reach.high - arrow, y, arrow);
    }
  }
  return data;
}

// Between round numbers that stand apart from each other.
double tick_step(const Reach& reach) {
  constexpr double kMost = 5.5;
  const double least = reach.width() / kMost;
  const double size = std::pow(10, std::floor(std::log10(least)));
  for (const double mantissa : {1.0, 2.0, 5.0}) {
    if (mantissa * size >= least) return mantissa * size;
  }
  return 10 * size;
}

}  // namespace

std::string draw(const ForestPlot& plot, const std::string& id) {
  constexpr int kLine = 18, kBetween = 8, kAbove = 6, kUnder = 56, kCharacter = 7, kGap = 14;
  constexpr double kApart = 0.3;  // of a row, the series in it
  const auto rows = static_cast<int>(plot.rows.size());
  const auto count = static_cast<int>(plot.series.size());
  gnuplot::Files files;
  const Reach reach = reach_of(plot);
  std::string values, intervals, means;
  for (int s = 0; s < count; ++s) {
    const ForestPlot::Series& series = plot.series[s];
    const SeriesData data = data_of(series, kApart * (s - 0.5 * (count - 1)), reach);
    const auto add = [&](std::string& commands, const char* what, const std::string& points,
                         const std::string& style) {
      if (points.empty()) return;
      const std::string name = fmt::format("{}{}", what, s);
      files[name] = points;
      commands += fmt::format(", '{}' using {}", name, style);
    };
    const uint32_t color = series.style.color;
    const int type = gnuplot::point_type(series.style.marker);
    add(values, "values", data.values,
        fmt::format("1:2 with points pt 7 ps 0.35 lc {}",
                    rgb(blend(color, gnuplot::kWhite, 0.35))));
    add(intervals, "intervals", data.intervals,
        fmt::format("1:2:3:4 with xerrorbars lw 1.4 pt 7 ps 0 lc {}", rgb(color)));
    add(intervals, "arrows", data.arrows,
        fmt::format("1:2:3:4 with vectors head filled size screen 0.012,25 lw 1.4 lc {}",
                    rgb(color)));
    add(means, "means", data.means,
        fmt::format("1:2 with points pt {} ps 0.75 lc {}", type, rgb(color)));
  }

  size_t longest = 0;
  for (const std::string& row : plot.rows) longest = std::max(longest, row.size());
  const int left = kGap + kCharacter * static_cast<int>(longest);
  const int height = kAbove + kUnder + rows * (kLine * count + kBetween);
  std::string script = gnuplot::terminal(height);
  script += fmt::format(
      "set border 1 lc {0}\nset tics nomirror scale 0.5 textcolor {1}\nset grid xtics lt 1 dt "
      "solid "
      "lw 1 lc rgb '#e4e4e4'\nset xlabel {2} textcolor {1}\nset format '%g'\nset rmargin 1.5\n"
      "set lmargin at screen {3:.4f}\nset tmargin at screen {4:.5f}\nset bmargin at screen "
      "{5:.5f}\n"
      "set bars 0.4\n",
      rgb(gnuplot::kFrame), rgb(gnuplot::kInk), quote(plot.x_label),
      static_cast<double>(left) / gnuplot::kWidth, 1 - static_cast<double>(kAbove) / height,
      static_cast<double>(kUnder) / height);
  script += fmt::format("set xrange [{:.9g}:{:.9g}]\nset xtics {:.9g}\n", reach.low, reach.high,
                        tick_step(reach));
  script += fmt::format("set yrange [{}.5:-0.5]\nset ytics {} scale 0 font 'sans-serif,12'\n",
                        rows - 1, gnuplot::ticks(plot.rows, plot.rows.size()));
  script += fmt::format("set arrow from 0, graph 0 to 0, graph 1 nohead lw 1.2 lc {}\n",
                        rgb(gnuplot::kInk));
  script += "plot" + (values + intervals + means).substr(1) + "\n";
  return gnuplot::inline_svg(script, files, id, plot.alt);
}

}  // namespace attnres
