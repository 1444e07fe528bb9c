#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "attnres/study/gnuplot.h"
#include "attnres/study/plot.h"
#include "attnres/support/error.h"

namespace attnres {
namespace {

using gnuplot::quote;
using gnuplot::rgb;

// The points of one series, as gnuplot reads them, and how far they reach.
struct SeriesData {
  std::string means, intervals, values;
};

struct Reach {
  double low = 0, high = 0;
  void include(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
};

SeriesData data_of(const ForestPlot::Series& series, double offset, Reach& reach) {
  constexpr double kBelow = 0.17;  // of a row, single values
  SeriesData data;
  for (const ForestPlot::Mean& mean : series.means) {
    if (!std::isfinite(mean.mean)) continue;
    const double y = static_cast<double>(mean.row) + offset;
    data.means += fmt::format("{:.9g} {:.9g}\n", mean.mean, y);
    reach.include(mean.mean);
    for (const double value : mean.values) {
      data.values += fmt::format("{:.9g} {:.9g}\n", value, y + kBelow);
      reach.include(value);
    }
    if (!std::isfinite(mean.low) || !std::isfinite(mean.high)) continue;
    data.intervals +=
        fmt::format("{:.9g} {:.9g} {:.9g} {:.9g}\n", mean.mean, y, mean.low, mean.high);
    reach.include(mean.low);
    reach.include(mean.high);
  }
  return data;
}

// Between round numbers that stand apart from each other.
double tick_step(const Reach& reach) {
  constexpr double kMost = 5.5;
  const double least = (reach.high - reach.low) / kMost;
  const double size = std::pow(10, std::floor(std::log10(least)));
  for (const double mantissa : {1.0, 2.0, 5.0}) {
    if (mantissa * size >= least) return mantissa * size;
  }
  return 10 * size;
}

}  // namespace

std::string draw(const ForestPlot& plot, const std::string& id) {
  constexpr int kLine = 18, kBetween = 8, kUnder = 52, kCharacter = 7, kGap = 14;
  constexpr double kApart = 0.3;  // of a row, the series in it
  const auto rows = static_cast<int>(plot.rows.size());
  const auto count = static_cast<int>(plot.series.size());
  gnuplot::Files files;
  std::string values, intervals, means;
  Reach reach;
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
    add(means, "means", data.means,
        fmt::format("1:2 with points pt {} ps 0.75 lc {}", type, rgb(color)));
  }
  require(!means.empty(), "plot \"{}\": it has no finite point", plot.alt);

  size_t longest = 0;
  for (const std::string& row : plot.rows) longest = std::max(longest, row.size());
  const int left = kGap + kCharacter * static_cast<int>(longest);
  const int height = kUnder + rows * (kLine * count + kBetween);
  const double slack = reach.high > reach.low ? 0.03 * (reach.high - reach.low) : 1;
  reach = {reach.low - slack, reach.high + slack};
  std::string script = gnuplot::terminal(height);
  script += fmt::format(
      "set border 1 lc {0}\nset tics nomirror scale 0.5 textcolor {1}\nset grid xtics lt 1 dt "
      "solid "
      "lw 1 lc rgb '#e4e4e4'\nset xlabel {2} textcolor {1}\nset format '%g'\nset rmargin 1.5\n"
      "set lmargin at screen {3:.4f}\nset tmargin 0.5\nset bars 0.4\n",
      rgb(gnuplot::kFrame), rgb(gnuplot::kInk), quote(plot.x_label),
      static_cast<double>(left) / gnuplot::kWidth);
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
