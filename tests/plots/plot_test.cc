#include "attnres/plots/plot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <regex>
#include <set>
#include <sstream>

#include "attnres/plots/gnuplot.h"
#include "attnres/support/error.h"

namespace attnres::plot_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

struct Point {
  double x, y;
};

// The points of the path drawn in `color` ("#0072b2"), in pixels.
std::vector<Point> path_of(const std::string& svg, const std::string& color) {
  std::smatch path;
  const std::regex pattern("stroke='rgb\\( *" + color + "\\)'[^>]*d='([^']*)'");
  if (!std::regex_search(svg, path, pattern)) return {};
  std::string text = path[1];
  for (char& c : text) c = c == 'M' || c == 'L' || c == ',' ? ' ' : c;
  std::istringstream numbers(text);
  std::vector<Point> out;
  for (Point p; numbers >> p.x >> p.y;) out.push_back(p);
  return out;
}

size_t count(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++n;
  return n;
}

LinePlot line_plot(std::vector<double> y) {
  LinePlot plot{.alt = "test", .x_label = "x", .y_label = "y"};
  plot.curves.push_back({{0, 1, 2, 4}, std::move(y), line_style(0)});
  return plot;
}

TEST(Gnuplot, AbsentIsAClearError) {
  const std::string path = std::getenv("PATH");
  setenv("PATH", "/nonexistent", 1);
  try {
    gnuplot::run("", {});
    ADD_FAILURE() << "ran";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("install gnuplot-nox"));
  }
  setenv("PATH", path.c_str(), 1);
}

TEST(Gnuplot, ItsComplaintIsPassedOn) {
  try {
    gnuplot::run("set nonsense\n", {});
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("nonsense"));
  }
}

TEST(LinePlot, PointsLieWhereTheDataSays) {
  const std::vector<double> x = {0, 1, 2, 4}, y = {3, 1, 2, 2.5};
  const std::vector<Point> path = path_of(draw(line_plot(y), "p"), "0, 114, 178");
  ASSERT_EQ(path.size(), 4);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR((path[i].x - path[0].x) / (path[3].x - path[0].x), (x[i] - x[0]) / 4, 2e-3);
    EXPECT_NEAR((path[i].y - path[0].y) / (path[1].y - path[0].y), (y[i] - y[0]) / (y[1] - y[0]),
                2e-3);
  }
  EXPECT_LT(path[0].y, path[1].y) << "larger values are higher on the page";
}

TEST(LinePlot, OtherDataGiveAnotherPlot) {
  EXPECT_EQ(draw(line_plot({3, 1, 2, 2.5}), "p"), draw(line_plot({3, 1, 2, 2.5}), "p"));
  EXPECT_NE(draw(line_plot({3, 1, 2, 2.5}), "p"), draw(line_plot({3, 1, 2, 2.4}), "p"));
}

TEST(LinePlot, LeavesOutWhatIsNotFinite) {
  const std::string svg = draw(line_plot({3, NAN, INFINITY, 2.5}), "p");
  EXPECT_EQ(path_of(svg, "0, 114, 178").size(), 2);
  EXPECT_THROW(draw(line_plot({NAN, NAN, NAN, NAN}), "p"), Error);
}

// A power law is a straight line on logarithmic axes, and none on others.
TEST(LinePlot, LogarithmicAxesMakePowersStraight) {
  const auto bend = [](bool logarithmic) {
    LinePlot plot{.alt = "test", .log_x = logarithmic, .log_y = logarithmic};
    plot.curves.push_back({{1e13, 1e14, 1e15}, {2, 1.8, 1.62}, line_style(0)});
    const std::vector<Point> path = path_of(draw(plot, "p"), "0, 114, 178");
    if (path.size() != 3) return NAN;
    const double share = (path[1].x - path[0].x) / (path[2].x - path[0].x);
    return float((path[1].y - path[0].y) / (path[2].y - path[0].y) - share);
  };
  EXPECT_NEAR(bend(true), 0, 5e-3);
  EXPECT_GT(std::abs(bend(false)), 0.3);
}

TEST(LinePlot, LogarithmicAxesHaveTicksInNarrowRanges) {
  LinePlot plot{.alt = "test", .log_x = true, .log_y = true};
  plot.curves.push_back({{2e13, 9e14}, {1.72, 1.94}, line_style(0)});
  const std::string svg = draw(plot, "p");
  for (const char* tick : {">1.75<", ">1.8<", ">1.9<", ">5×10¹³<", ">10¹⁴<"}) {
    EXPECT_THAT(svg, HasSubstr(tick));
  }
}

TEST(LinePlot, LogarithmicAxesHaveTicksBetweenNeighbours) {
  LinePlot plot{.alt = "test", .log_x = true, .log_y = true};
  plot.curves.push_back({{1, std::nextafter(1.0, 2.0)}, {1, std::nextafter(1.0, 2.0)}, {}});
  EXPECT_THAT(draw(plot, "p"), HasSubstr(">1<"));
}

TEST(LinePlot, BarsWidenTheAxis) {
  LinePlot plot{.alt = "test"};
  plot.curves.push_back({{0, 1}, {1, 2}, line_style(0)});
  const std::string without = draw(plot, "p");
  plot.curves[0].low = {0.5, NAN};
  plot.curves[0].high = {9.5, NAN};
  const std::string with = draw(plot, "p");
  EXPECT_THAT(with, HasSubstr(">8<"));
  EXPECT_THAT(without, Not(HasSubstr(">8<")));
}

// The marks of the second series, orange squares, in pixels.
std::vector<Point> squares_of(const std::string& svg) {
  const std::regex mark("href='#p-gpPt4' transform='translate\\(([0-9.]+),([0-9.]+)\\)");
  std::vector<Point> out;
  for (std::sregex_iterator at(svg.begin(), svg.end(), mark), end; at != end; ++at) {
    out.push_back({std::stod((*at)[1]), std::stod((*at)[2])});
  }
  return out;
}

TEST(ForestPlot, PutsRowsBeneathEachOtherAndMeansAlongX) {
  ForestPlot plot{.alt = "test", .x_label = "x", .rows = {"first", "second", "third"}};
  plot.series.push_back({line_style(0), {{.row = 1, .mean = 2, .low = -3, .high = 7}}});
  plot.series.push_back(
      {line_style(1), {{.row = 0, .mean = 0}, {.row = 1, .mean = 1}, {.row = 2, .mean = 3}}});
  const std::string svg = draw(plot, "p");
  for (const char* label : {">first<", ">second<", ">third<", ">-2<", ">6<"}) {
    EXPECT_THAT(svg, HasSubstr(label));
  }
  const std::vector<Point> marks = squares_of(svg);
  ASSERT_EQ(marks.size(), 3u);
  EXPECT_NEAR(marks[2].x - marks[0].x, 3 * (marks[1].x - marks[0].x), 0.3);
  EXPECT_GT(marks[1].x, marks[0].x);
  EXPECT_NEAR(marks[2].y - marks[1].y, marks[1].y - marks[0].y, 0.3);
  EXPECT_GT(marks[1].y, marks[0].y);
}

TEST(ForestPlot, CutsWhatReachesMuchFartherThanTheOthers) {
  ForestPlot plot{.alt = "test", .rows = std::vector<std::string>(8, "row")};
  ForestPlot::Series& series = plot.series.emplace_back();
  series.style = line_style(1);
  for (size_t row = 0; row < 8; ++row) {
    series.means.push_back({.row = row, .mean = row + 1.0, .low = 0, .high = row + 2.0});
  }
  const auto arrow_heads = [&] { return count(draw(plot, "p"), "<polygon"); };
  EXPECT_EQ(arrow_heads(), 0);
  series.means[3].high = 100;
  EXPECT_EQ(arrow_heads(), 1);
  EXPECT_EQ(squares_of(draw(plot, "p")).size(), 8u);
  series.means[3].low = -100;
  EXPECT_EQ(arrow_heads(), 2);
  series.means[3].mean = 99;
  EXPECT_EQ(squares_of(draw(plot, "p")).size(), 7u);
}

// However few rows there are, they keep their distance from the axis.
TEST(ForestPlot, OfOneArmLiesAboveItsAxis) {
  const auto above_axis = [](size_t rows) {
    ForestPlot plot{.alt = "test", .x_label = "difference"};
    ForestPlot::Series series{.style = line_style(1)};
    for (size_t row = 0; row < rows; ++row) {
      plot.rows.push_back("arm");
      series.means.push_back({.row = row, .mean = -0.01, .low = -0.02, .high = 0.001});
    }
    plot.series = {series};
    const std::string svg = draw(plot, "p");
    const std::regex line("stroke='rgb\\(153, 153, 153\\)'[^>]*d='M[0-9.]+,([0-9.]+)");
    double axis = 0;  // the lowest of the frame's lines and ticks
    for (std::sregex_iterator at(svg.begin(), svg.end(), line), end; at != end; ++at) {
      axis = std::max(axis, std::stod((*at)[1]));
    }
    const std::vector<Point> marks = squares_of(svg);
    EXPECT_EQ(marks.size(), rows);
    EXPECT_GT(axis, 0);
    return marks.empty() ? 0 : axis - marks.back().y;
  };
  EXPECT_GT(above_axis(1), 8);
  EXPECT_NEAR(above_axis(1), above_axis(4), 4);
}

TEST(ForestPlot, NeedsAMean) {
  ForestPlot plot{.alt = "test", .rows = {"first"}};
  plot.series.push_back({line_style(0), {{.row = 0, .mean = NAN}}});
  EXPECT_THROW(draw(plot, "p"), Error);
}

TEST(PlainLabel, LeavesNothingThatIsInterpreted) {
  EXPECT_EQ(plain_label("block 4, 0.5%"), "block 4, 0.5%");
  EXPECT_EQ(plain_label("a'b\n`c`@d\\"), "a_b__c__d_");
  EXPECT_EQ(plain_label(std::string(99, 'x')).size(), 24u);
  EXPECT_EQ(plain_label(std::string(99, 'x'), 34).size(), 34u);
}

TEST(LinePlot, OnePointIsEnough) {
  LinePlot plot;
  plot.curves.push_back({{7}, {1}, line_style(0)});
  EXPECT_THAT(draw(plot, "p"), HasSubstr("<svg"));
}

TEST(LinePlot, IdsAreItsOwnAndNothingIsExternal) {
  const std::string svg = draw(line_plot({3, 1, 2, 2.5}), "mine");
  EXPECT_THAT(svg, HasSubstr("id='mine-gpPt6'"));
  EXPECT_EQ(count(svg, "<title"), 0);
  EXPECT_EQ(count(svg, "id='"), count(svg, "id='mine-"));
  EXPECT_EQ(count(svg, "id=\""), count(svg, "id=\"mine-"));
  EXPECT_EQ(count(svg, "href='"), count(svg, "href='#mine-"));
  EXPECT_THAT(svg, Not(HasSubstr("http")));
}

TEST(LinePlot, LabelsAreNotInterpreted) {
  const auto trap = std::filesystem::path(::testing::TempDir()) / "attnres_plot_trap";
  std::filesystem::remove(trap);
  LinePlot plot = line_plot({3, 1, 2, 2.5});
  plot.x_label = "it's `touch " + trap.string() + "` <b> x_1^2 @y";
  const std::string svg = draw(plot, "p");
  EXPECT_FALSE(std::filesystem::exists(trap));
  EXPECT_THAT(svg, HasSubstr("it's `touch "));
  EXPECT_THAT(svg, HasSubstr("&lt;b> x_1^2 @y"));
}

// On a page of 400 pixels some 360 remain for a plot, which is scaled to fit.
void expect_legible_on_a_phone(const std::string& svg) {
  std::smatch width;
  ASSERT_TRUE(std::regex_search(svg, width, std::regex("viewBox=\"0 0 ([0-9]+) ")));
  const double scale = 360 / std::stod(width[1]);
  const std::regex size("font-size=[\"']([0-9.]+)");
  std::sregex_iterator it(svg.begin(), svg.end(), size), end;
  ASSERT_NE(it, end);
  for (; it != end; ++it) EXPECT_GE(scale * std::stod((*it)[1]), 9);
}

TEST(LinePlot, IsLegibleOnAPhone) {
  expect_legible_on_a_phone(draw(line_plot({3, 1, 2, 2.5}), "p"));
}

HeatMap heat_map() {
  HeatMap map{.alt = "test", .x_label = "x", .y_label = "y"};
  map.row_names = {"one", "two"};
  map.column_names = {"0", "1", "2"};
  map.values = {{0.25, NAN, NAN}, {0.5, 0.125, 1}};
  return map;
}

TEST(HeatMap, PrintsItsNumbersAndLeavesBlanks) {
  const std::string svg = draw(heat_map(), "h");
  for (const char* number : {".25<", ".50<", ".12<", "1.00<", ">one<", ">two<"}) {
    EXPECT_THAT(svg, HasSubstr(number));
  }
  EXPECT_EQ(count(svg, "<polygon"), 4);
}

TEST(HeatMap, RefusesMoreCellsThanAreSeen) {
  HeatMap map{.alt = "test", .column_names = {"0"}};
  map.row_names.resize(kMostCells + 1);
  map.values.assign(kMostCells + 1, {0.5});
  EXPECT_THROW(draw(map, "p"), Error);
  EXPECT_TRUE(fits_heat_map(kMostCells, kMostCells));
  EXPECT_FALSE(fits_heat_map(1, kMostCells + 1));
}

TEST(HeatMap, NamesItsRowsWhereTheNameHasRoom) {
  HeatMap map = heat_map();
  map.y_label = "Transformer layer";
  EXPECT_THAT(draw(map, "h"), Not(HasSubstr("Transformer")));
  for (const auto& name : {"three", "four"}) {
    map.row_names.emplace_back(name);
    map.values.push_back({0, 0, 0});
  }
  EXPECT_THAT(draw(map, "h"), HasSubstr("Transformer layer"));
}

TEST(HeatMap, IsLegibleOnAPhone) {
  expect_legible_on_a_phone(draw(heat_map(), "h"));
}

TEST(HeatMap, OutlinesAreDrawnInTheirCells) {
  HeatMap map = heat_map();
  const std::string plain = draw(map, "h");
  map.outlined = {{false, false, false}, {false, true, false}};
  const std::string outlined = draw(map, "h");
  EXPECT_THAT(plain, Not(HasSubstr("213,  94,   0")));
  EXPECT_THAT(outlined, HasSubstr("213,  94,   0"));
}

TEST(HeatMap, AsAFileHasABackgroundATitleAndTheScale) {
  HeatMap map{.alt = "matrix", .x_label = "source", .y_label = "site", .low = -0.5, .high = 0.5};
  map.row_names = map.column_names = {"a", "b"};
  map.values = {{0.5, NAN}, {-0.25, 0.25}};
  const std::string svg = draw_file(map, "Matrix of <x>");
  EXPECT_THAT(svg, ::testing::StartsWith("<svg xmlns=\"http://www.w3.org/2000/svg\""));
  std::smatch size;
  ASSERT_TRUE(std::regex_search(svg, size, std::regex("width=\"([0-9]+)\" height=\"([0-9]+)\"")));
  EXPECT_THAT(svg, HasSubstr(fmt::format("<rect width=\"{}\" height=\"{}\" fill=\"#fff\"/>",
                                         size[1].str(), size[2].str())));
  EXPECT_THAT(svg, HasSubstr(">Matrix of &lt;x&gt;</text>"));
  EXPECT_THAT(svg, HasSubstr(">-.50</text>"));
  EXPECT_THAT(svg, HasSubstr(">.50</text>"));
  EXPECT_EQ(count(svg, "<svg"), count(svg, "</svg>"));
  // In a page there is none of it.
  EXPECT_THAT(draw(map, "m"), Not(HasSubstr("fill=\"#fff\"")));
}

TEST(HeatMap, ALargeOneHasNoNumbers) {
  HeatMap map{.alt = "large"};
  for (int i = 0; i < 64; ++i) {
    map.row_names.push_back(std::to_string(i + 1));
    map.column_names.push_back(std::to_string(i));
    map.values.emplace_back(64, 0.37);
  }
  EXPECT_THAT(draw(map, "h"), Not(HasSubstr(".37<")));
}

TEST(HeatColor, DarkensWithTheValue) {
  const auto luma = [](uint32_t c) {
    return 0.299 * (c >> 16) + 0.587 * ((c >> 8) & 255) + 0.114 * (c & 255);
  };
  for (const double sign : {1.0, -1.0}) {
    for (int i = 0; i < 20; ++i) {
      const double low = sign < 0 ? -1 : 0;
      EXPECT_GT(luma(heat_color(sign * i / 20.0, low, 1)),
                luma(heat_color(sign * (i + 1) / 20.0, low, 1)));
    }
  }
  EXPECT_EQ(heat_color(2, 0, 1), heat_color(1, 0, 1));
}

TEST(LineStyle, ManyRunsDiffer) {
  std::set<std::tuple<uint32_t, int, std::vector<int>>> seen;
  for (size_t i = 0; i < 84; ++i) {
    const LineStyle style = line_style(i);
    seen.insert({style.color, style.marker, style.dash});
    EXPECT_NE(style.marker, line_style(i + 1).marker);
    EXPECT_NE(style.dash, line_style(i + 1).dash);
  }
  EXPECT_EQ(seen.size(), 84);
}

}  // namespace
}  // namespace attnres::plot_test
