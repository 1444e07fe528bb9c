#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "attnres/plots/gnuplot.h"
#include "attnres/plots/page_parts.h"
#include "attnres/plots/plot.h"
#include "attnres/support/error.h"

namespace attnres {
namespace {

using gnuplot::quote;
using gnuplot::rgb;

std::string curve_command(const Curve& curve, const std::string& file, size_t points) {
  const std::string data = fmt::format("'{}' using 1:2 with ", file);
  switch (curve.kind) {
    case Curve::Kind::background:
      return data + fmt::format("lines lw 1.3 dt solid lc {}",
                                rgb(blend(curve.style.color, gnuplot::kWhite, 0.62)));
    case Curve::Kind::reference:
      return data + fmt::format("lines lw 1.5 dt (1,3) lc {}", rgb(curve.style.color));
    case Curve::Kind::fit:
      return data + fmt::format("lines lw 1.6 {} lc {}", gnuplot::dash_type(curve.style.dash),
                                rgb(curve.style.color));
    case Curve::Kind::points:
      return data + fmt::format("points lw 1 lc {} pt {} ps 0.65", rgb(curve.style.color),
                                gnuplot::point_type(curve.style.marker));
    case Curve::Kind::measured:
      break;
  }
  const size_t every = std::max<size_t>(1, points / 16);
  return data + fmt::format("linespoints lw 2 {} lc {} pt {} ps 0.65 pi {}",
                            gnuplot::dash_type(curve.style.dash), rgb(curve.style.color),
                            gnuplot::point_type(curve.style.marker), every);
}

// Names for x = 0, 1, ..., as many as fit beside each other, turned where they are long.
std::string named_ticks(const std::vector<std::string>& names) {
  constexpr size_t kCharacters = 44;  // beside each other
  size_t longest = 1;
  for (const std::string& name : names) longest = std::max(longest, name.size() + 1);
  const bool fit = longest * names.size() <= kCharacters;
  return gnuplot::ticks(names, 16) + (fit ? "" : " rotate by 40 right font 'sans-serif,11'");
}

// Where a logarithmic axis has its ticks. gnuplot's own are powers of ten, of which a narrow range
// may hold none.
std::vector<double> log_ticks(double low, double high) {
  std::vector<double> values;
  if (high < 5 * low) {
    const double size = std::pow(10, std::floor(std::log10(high - low)));
    const double share = (high - low) / size;
    const double step = size * (share < 1.5 ? 0.2 : share < 3 ? 0.5 : share < 7 ? 1 : 2);
    for (double at = std::ceil(low / step); at * step <= high; ++at) values.push_back(at * step);
    return values;
  }
  const bool wide = high > 300 * low;
  const int first = static_cast<int>(std::floor(std::log10(low)));
  const int last = static_cast<int>(std::ceil(std::log10(high)));
  const int stride = 1 + (last - first) / 7;
  for (int exponent = first; exponent <= last; exponent += stride) {
    for (const double mantissa : {1.0, 2.0, 5.0}) {
      const double value = mantissa * std::pow(10, exponent);
      if (value < low || value > high || (wide && mantissa > 1)) continue;
      values.push_back(value);
    }
  }
  return values;
}

// "250", "0.02", "2×10¹³"
std::string tick_label(double value) {
  if (value >= 1e-3 && value < 1e5)
    return fmt::format("{:g}", std::stod(fmt::format("{:.6g}", value)));
  const int exponent = static_cast<int>(std::floor(std::log10(value) + 1e-9));
  const std::string mantissa = fmt::format("{:.3g}", value / std::pow(10, exponent));
  return (mantissa == "1" ? "" : mantissa + "×") + "10" + superscript(exponent);
}

// A logarithmic axis, "x" or "y".
std::string log_axis(const char* axis, double low, double high) {
  std::string places;
  for (const double value : log_ticks(low, high)) {
    places +=
        fmt::format("{}{} {:.9g}", places.empty() ? "" : ", ", quote(tick_label(value)), value);
  }
  return fmt::format("set logscale {0}\nset {0}tics ({1})\n", axis, places);
}

// From the least to the largest of finite values.
struct PlotRange {
  double low = INFINITY, high = -INFINITY;
  void include(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
};

// What gnuplot draws: its data, the commands that draw it, and how far it reaches.
struct DrawnCurves {
  gnuplot::Files files;
  std::string below, above;
  PlotRange x, y;
};

void add_command(std::string& commands, const std::string& command) {
  commands += (commands.empty() ? "" : ", ") + command;
}

void add_curve(DrawnCurves& drawn, const LinePlot& plot, const Curve& curve) {
  const auto drawable = [&](double x, double y) {
    return std::isfinite(x) && std::isfinite(y) && (!plot.log_x || x > 0) && (!plot.log_y || y > 0);
  };
  const std::string name = fmt::format("curve{}", drawn.files.size());
  std::string data, bars;
  size_t points = 0;
  for (size_t i = 0; i < curve.x.size(); ++i) {
    const double x = curve.x[i], y = curve.y[i];
    if (!drawable(x, y)) continue;
    data += fmt::format("{:.9g} {:.9g}\n", x, y);
    drawn.x.include(x);
    drawn.y.include(y);
    ++points;
    if (curve.low.empty() || !drawable(curve.low[i], curve.high[i])) continue;
    bars += fmt::format("{:.9g} {:.9g} {:.9g} {:.9g}\n", x, y, curve.low[i], curve.high[i]);
    drawn.y.include(curve.low[i]);
    drawn.y.include(curve.high[i]);
  }
  if (points == 0) return;
  drawn.files[name] = data;
  const bool is_above = curve.kind == Curve::Kind::measured || curve.kind == Curve::Kind::points;
  add_command(is_above ? drawn.above : drawn.below, curve_command(curve, name, points));
  if (bars.empty()) return;
  drawn.files["bars-" + name] = bars;
  add_command(drawn.below,
              fmt::format("'bars-{}' using 1:2:3:4 with yerrorbars lw 1.2 pt 7 ps 0 lc {}", name,
                          rgb(curve.style.color)));
}

std::string x_axis(const LinePlot& plot, const PlotRange& x) {
  std::string script;
  if (plot.log_x) {
    const double slack = x.high > x.low ? std::max(std::pow(x.high / x.low, 0.04), 1.001) : 2;
    script = log_axis("x", x.low / slack, x.high * slack) +
             fmt::format("set xrange [{:.9g}:{:.9g}]\n", x.low / slack, x.high * slack);
  } else {
    double slack = x.high > x.low ? 0.02 * (x.high - x.low) : 0.5;
    if (!plot.x_names.empty()) slack = 0.3;
    script = fmt::format("set xrange [{:.9g}:{:.9g}]\n", x.low - slack, x.high + slack);
  }
  if (plot.whole_x) {
    const double step = std::max(1.0, std::ceil((x.high - x.low) / 12));
    script += fmt::format("set xtics {:.9g},{:.9g},{:.9g}\n", x.low, step, x.high);
  }
  if (!plot.x_names.empty()) script += "set xtics " + named_ticks(plot.x_names) + "\n";
  return script;
}

// Nothing where gnuplot's own is right.
std::string y_axis(const LinePlot& plot, PlotRange y) {
  const bool given = std::isfinite(plot.y_low) && std::isfinite(plot.y_high);
  if (given) {
    y = {plot.y_low, plot.y_high};
  } else if (plot.log_y) {
    const double slack = std::max(std::pow(y.high / y.low, 0.06), 1.001);
    y = {y.low / slack, y.high * slack};
  } else {
    return "";
  }
  return (plot.log_y ? log_axis("y", y.low, y.high) : "") +
         fmt::format("set yrange [{:.9g}:{:.9g}]\n", y.low, y.high);
}

}  // namespace

std::string draw(const LinePlot& plot, const std::string& id) {
  DrawnCurves drawn;
  for (const Curve& curve : plot.curves) add_curve(drawn, plot, curve);
  require(drawn.x.low <= drawn.x.high, "plot \"{}\": it has no finite point", plot.alt);
  std::string script = gnuplot::terminal(290);
  script += fmt::format(
      "set border 3 lc {0}\nset tics nomirror scale 0.5 textcolor {1}\n"
      "set grid ytics lt 1 dt solid lw 1 lc rgb '#e4e4e4'\n"
      "set xlabel {2} textcolor {1}\nset ylabel {3} textcolor {1} offset 0.5\n"
      "set format '%g'\nset rmargin 2.5\nset tmargin 0.8\nset bars 0.6\n",
      rgb(gnuplot::kFrame), rgb(gnuplot::kInk), quote(plot.x_label), quote(plot.y_label));
  script += x_axis(plot, drawn.x) + y_axis(plot, drawn.y);
  if (!drawn.above.empty()) add_command(drawn.below, drawn.above);
  script += "plot " + drawn.below + "\n";
  return gnuplot::inline_svg(script, drawn.files, id, plot.alt);
}

}  // namespace attnres
