// Plots as inline SVG, drawn by gnuplot (gnuplot.h).
//
// All text in a plot is the caller's own: names that come from files belong in HTML beside the plot
// (see legend_swatch), or come as plain_label gives them, so nothing that a file says reaches
// gnuplot's interpreter.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace attnres {

// A name of a file's for an axis: " · " becomes a space, and '_' what else is no letter, digit,
// space or one of ._+-,:()%; of one longer than `longest` bytes its beginning is left.
std::string plain_label(const std::string& name, size_t longest = 24);

// How the i-th run looks everywhere: 7 colours (Okabe and Ito's, without yellow), 6 markers and 4
// dash patterns, so that 84 runs differ, and neighbours differ without colour too.
struct LineStyle {
  uint32_t color;         // 0xRRGGBB
  int marker;             // 0 .. 5
  std::vector<int> dash;  // pixels on, off, ...; empty: solid
};
LineStyle line_style(size_t index);

// A colour between two, at t = 0 .. 1 from a to b.
uint32_t blend(uint32_t a, uint32_t b, double t);

// The style as a small inline SVG, for a legend.
std::string legend_swatch(const LineStyle& style);

struct Curve {
  std::vector<double> x = {},
                      y = {};  // as long as each other; points that are not finite are left out
  LineStyle style = {};
  enum class Kind { measured, background, reference, points, fit } kind = Kind::measured;
  // As long as y, or empty: bars from one to the other, where both are finite.
  std::vector<double> low = {}, high = {};
};

// Curves over one pair of axes: measured ones with markers, background ones pale, reference ones
// thin and dotted, points markers alone, fits thin lines; points and measured ones above.
struct LinePlot {
  std::string alt = {};  // what a screen reader says
  std::string x_label = {}, y_label = {};
  double y_low = std::numeric_limits<double>::quiet_NaN();  // NaN: from the data
  double y_high = std::numeric_limits<double>::quiet_NaN();
  bool log_x = false, log_y = false;
  bool whole_x = false;                   // ticks at whole numbers only
  std::vector<std::string> x_names = {};  // of x = 0, 1, ..., in place of numbers; empty: none
  std::vector<Curve> curves = {};
};

// A forest plot: a row for each name, from above, and in it means with their intervals, side by
// side along x, with a line at 0. What reaches much farther than the others is cut, with an arrow.
struct ForestPlot {
  struct Mean {
    size_t row = 0;
    double mean = 0;
    double low = std::numeric_limits<double>::quiet_NaN(), high = low;  // NaN: no interval
    std::vector<double> values = {};  // what the mean is of: small pale points
  };
  struct Series {
    LineStyle style = {};
    std::vector<Mean> means = {};
  };
  std::string alt = {};
  std::string x_label = {};
  std::vector<std::string> rows = {};
  std::vector<Series> series = {};  // beneath each other in a row
};

// The most rows, and columns, of a heat map: more are too small to be seen.
inline constexpr size_t kMostCells = 2048;

// A matrix as coloured cells; NaN leaves a cell blank. Values are printed where they fit.
struct HeatMap {
  std::string alt = {};
  std::string x_label = {}, y_label = {};
  std::vector<std::string> row_names = {}, column_names = {};  // drawn as far as they fit
  std::vector<std::vector<double>> values = {};                // [rows][columns]
  std::vector<std::vector<bool>> outlined = {};                // [rows][columns]; empty: none
  double low = 0, high = 1;  // colour scale; diverging where low < 0, else from low on
  int decimals = 2;          // of printed values
  bool small = false;        // one of many: without names and printed values
};
// Whether a heat map can have so many.
inline bool fits_heat_map(size_t rows, size_t columns) {
  return std::max(rows, columns) <= kMostCells;
}

// `id` prefixes the ids inside the SVG: one of its own for each plot on a page.
std::string draw(const LinePlot& plot, const std::string& id);
std::string draw(const ForestPlot& plot, const std::string& id);
std::string draw(const HeatMap& plot, const std::string& id);

// The same as a file by itself, for a page of any colour: on white, with a title and the scale.
std::string draw_file(const HeatMap& plot, const std::string& title);

// The colour 0xRRGGBB of a value, and the scale as a small inline SVG with its ends labelled.
uint32_t heat_color(double value, double low, double high);
std::string heat_legend(double low, double high, int decimals = 2);

}  // namespace attnres
