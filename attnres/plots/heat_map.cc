#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "attnres/plots/gnuplot.h"
#include "attnres/plots/html.h"
#include "attnres/plots/plot.h"
#include "attnres/support/error.h"

namespace attnres {
namespace {

using gnuplot::quote;
using gnuplot::rgb;

constexpr uint32_t kOutline = 0xd55e00;

// ".25", "-.25", "1.20"
std::string short_decimal(double value, int decimals) {
  std::string text = fmt::format("{:.{}f}", value, decimals);
  if (const size_t zero = text.find("0."); zero == 0 || (zero == 1 && text[0] == '-')) {
    text.erase(zero, 1);
  }
  return text;
}

bool is_dark(uint32_t color) {
  const double luma =
      0.299 * ((color >> 16) & 0xFF) + 0.587 * ((color >> 8) & 0xFF) + 0.114 * (color & 0xFF);
  return luma < 140;
}

// Where the cells lie, in pixels.
struct HeatLayout {
  static constexpr int kRight = 14, kTop = 8;
  int left, bottom, height;
  double cell_width, cell_height;
};

HeatLayout layout_of(const HeatMap& plot) {
  constexpr int kBottom = 50, kAxis = 38, kCharacter = 8;
  const auto rows = static_cast<double>(plot.values.size());
  const auto columns = static_cast<double>(plot.column_names.size());
  size_t longest = 3;
  for (const std::string& name : plot.row_names) longest = std::max(longest, name.size());
  HeatLayout at;
  at.left = plot.small ? HeatLayout::kRight : kAxis + kCharacter * static_cast<int>(longest);
  at.bottom = plot.small ? HeatLayout::kTop : kBottom;
  at.cell_width = double(gnuplot::kWidth - at.left - HeatLayout::kRight) / columns;
  at.cell_height = std::clamp(330.0 / rows, 7.0, 30.0);
  at.height = HeatLayout::kTop + at.bottom + int(std::lround(at.cell_height * rows));
  return at;
}

// The data of gnuplot: cells, those that are outlined, and the values that are printed on them.
struct HeatCells {
  std::string cells, outlines, dark, light;
};

HeatCells cells_of(const HeatMap& plot, const HeatLayout& at) {
  const bool numbers =
      !plot.small && at.cell_width >= 15 + 7 * plot.decimals && at.cell_height >= 15;
  const double half = std::min(at.cell_width, at.cell_height) >= 9 ? 0.475 : 0.502;
  HeatCells data;
  for (size_t row = 0; row < plot.values.size(); ++row) {
    for (size_t column = 0; column < plot.values[row].size(); ++column) {
      const double value = plot.values[row][column];
      if (!std::isfinite(value)) continue;
      const uint32_t color = heat_color(value, plot.low, plot.high);
      const std::string cell = fmt::format("{} {} {} {}", column, row, half, half);
      data.cells += fmt::format("{} {}\n", cell, color);
      if (!plot.outlined.empty() && plot.outlined[row][column]) data.outlines += cell + "\n";
      if (numbers) {
        (is_dark(color) ? data.light : data.dark) +=
            fmt::format("{} {} {}\n", column, row, short_decimal(value, plot.decimals));
      }
    }
  }
  return data;
}

// Beside its rows, from bottom to top; "" where there are too few of them for it.
std::string y_label_of(const HeatMap& plot, const HeatLayout& at) {
  constexpr double kCharacter = 7;
  const double rows = at.height - HeatLayout::kTop - at.bottom;
  const bool fits =
      kCharacter * static_cast<double>(plot.y_label.size()) <= rows + 2 * HeatLayout::kTop;
  return fits ? plot.y_label : "";
}

std::string axes_of(const HeatMap& plot, const HeatLayout& at) {
  std::string script = fmt::format(
      "set lmargin at screen {:.5f}\nset rmargin at screen {:.5f}\n"
      "set tmargin at screen {:.5f}\nset bmargin at screen {:.5f}\n",
      double(at.left) / gnuplot::kWidth, 1 - double(HeatLayout::kRight) / gnuplot::kWidth,
      1 - double(HeatLayout::kTop) / at.height, double(at.bottom) / at.height);
  script +=
      fmt::format("unset border\nset tics nomirror scale 0 textcolor {}\n", rgb(gnuplot::kInk));
  if (!plot.small) {
    script +=
        fmt::format("set xlabel {0} textcolor {2} offset 0,0.4\nset ylabel {1} textcolor {2}\n",
                    quote(plot.x_label), quote(y_label_of(plot, at)), rgb(gnuplot::kInk));
  }
  const size_t rows = plot.values.size();
  script += fmt::format("set xrange [-0.5:{}.5]\nset yrange [{}.5:-0.5]\n",
                        plot.column_names.size() - 1, rows - 1);
  if (plot.small) return script + "unset tics\n";
  return script +
         fmt::format("set xtics {}\nset ytics {}\n", gnuplot::ticks(plot.column_names, 13),
                     gnuplot::ticks(plot.row_names,
                                    std::max<size_t>(1, size_t(rows * at.cell_height / 17))));
}

}  // namespace

std::string draw(const HeatMap& plot, const std::string& id) {
  const size_t rows = plot.values.size(), columns = plot.column_names.size();
  require(rows > 0 && columns > 0 && plot.row_names.size() == rows,
          "plot \"{}\": expected a name for each row and column, came {} rows, {} names and {} "
          "columns",
          plot.alt, rows, plot.row_names.size(), columns);
  require(fits_heat_map(rows, columns), "plot \"{}\": {} rows and {} columns, of {} each at most",
          plot.alt, rows, columns, kMostCells);
  const HeatLayout at = layout_of(plot);
  const HeatCells data = cells_of(plot, at);
  gnuplot::Files files = {{"cells", data.cells}};
  std::string script =
      gnuplot::terminal(at.height) + axes_of(plot, at) +
      "plot 'cells' using 1:2:3:4:5 with boxxyerror lc rgb variable fs solid noborder";
  if (!data.outlines.empty()) {
    files["outlines"] = data.outlines;
    script += fmt::format(
        ", 'outlines' using 1:2:3:4 with boxxyerror lw 1.6 lc {0} fs empty border lc {0}",
        rgb(kOutline));
  }
  for (const auto& [name, text, color] : {std::tuple{"dark", &data.dark, gnuplot::kInk},
                                          std::tuple{"light", &data.light, gnuplot::kWhite}}) {
    if (text->empty()) continue;
    files[name] = *text;
    script +=
        fmt::format(", '{}' using 1:2:3 with labels font 'sans-serif,11' tc {}", name, rgb(color));
  }
  return gnuplot::inline_svg(script + "\n", files, id, plot.alt);
}

std::string draw_file(const HeatMap& plot, const std::string& title) {
  constexpr int kTitle = 40, kScale = 34, kSteps = 40, kStep = 4;
  constexpr size_t kLongestTitle = 48;  // that fits the width
  const std::string map = draw(plot, "map");
  int height = 0;
  const size_t view = map.find("viewBox=\"");
  require(std::sscanf(map.c_str() + view, "viewBox=\"0 0 %*d %d\"", &height) == 1,
          "plot \"{}\": its SVG has no size", plot.alt);
  std::string scale;
  for (int i = 0; i < kSteps; ++i) {
    const double value = plot.low + (plot.high - plot.low) * (i + 0.5) / kSteps;
    scale += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"12\" fill=\"#{:06x}\"/>\n",
                         70 + i * kStep, kTitle + height + 6, kStep + 0.3,
                         heat_color(value, plot.low, plot.high));
  }
  const auto end = [&](int x, const char* anchor, double value) {
    return fmt::format("<text x=\"{}\" y=\"{}\" font-size=\"12\" text-anchor=\"{}\">{}</text>\n", x,
                       kTitle + height + 16, anchor,
                       value == 0 ? "0" : short_decimal(value, plot.decimals));
  };
  const std::string shown =
      title.size() > kLongestTitle ? title.substr(0, kLongestTitle - 3) + "..." : title;
  return fmt::format(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" "
             "xmlns:xlink=\"http://www.w3.org/1999/xlink\" "
             "width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" font-family=\"sans-serif\" "
             "fill=\"#{2:06x}\" role=\"img\" aria-label=\"{3}\">\n"
             "<rect width=\"{0}\" height=\"{1}\" fill=\"#fff\"/>\n"
             "<text x=\"14\" y=\"26\" font-size=\"15\" font-weight=\"bold\">{4}</text>\n",
             gnuplot::kWidth, kTitle + height + kScale, gnuplot::kInk, escape_html(plot.alt),
             escape_html(shown)) +
         fmt::format("<svg y=\"{}\" width=\"{}\" height=\"{}\"", kTitle, gnuplot::kWidth, height) +
         map.substr(std::string("<svg").size()) + scale + end(64, "end", plot.low) +
         end(76 + kSteps * kStep, "start", plot.high) + "</svg>\n";
}

uint32_t heat_color(double value, double low, double high) {
  static constexpr uint32_t kRising[] = {0xe8eef5, 0xa9cce6, 0x5aa2cf, 0x1f6fae, 0x08306b};
  static constexpr uint32_t kFalling[] = {0xe8eef5, 0xf3c39b, 0xdf8a4b, 0xb35806, 0x6b3403};
  const uint32_t* ramp = value < 0 ? kFalling : kRising;
  const double extreme = low > 0 ? high - low : std::max(std::abs(low), std::abs(high));
  const double distance = low > 0 ? value - low : std::abs(value);
  const double at = extreme > 0 ? std::clamp(distance / extreme, 0.0, 1.0) * 4 : 0;
  const int stop = std::min(int(at), 3);
  return blend(ramp[stop], ramp[stop + 1], at - stop);
}

std::string heat_legend(double low, double high, int decimals) {
  constexpr int kSteps = 40, kStep = 4;
  std::string out = fmt::format(
      "<span class=\"scale\">{}<svg width=\"{w}\" height=\"12\" viewBox=\"0 0 {w} 12\" "
      "aria-hidden=\"true\">",
      low == 0 ? "0" : short_decimal(low, decimals), fmt::arg("w", kSteps * kStep));
  for (int i = 0; i < kSteps; ++i) {
    const double value = low + (high - low) * (i + 0.5) / kSteps;
    out += fmt::format("<rect x=\"{}\" width=\"{}\" height=\"12\" fill=\"#{:06x}\"/>", i * kStep,
                       kStep + 0.3, heat_color(value, low, high));
  }
  return out + fmt::format("</svg>{}</span>", short_decimal(high, decimals));
}

}  // namespace attnres
