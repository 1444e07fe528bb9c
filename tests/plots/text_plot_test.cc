#include "attnres/plots/text_plot.h"

#include <gtest/gtest.h>

#include <cmath>

#include "attnres/support/terminal.h"

namespace attnres::text_plot_test {
namespace {

using Lines = std::vector<std::string>;

TEST(Sparkline, GoesFromTheLeastToTheLargest) {
  EXPECT_EQ(sparkline({0, 1, 2, 3, 4, 5, 6, 7}, 8), "▁▂▃▄▅▆▇█");
  EXPECT_EQ(sparkline({-3, -3, -3}, 8), "▁▁▁");
  EXPECT_EQ(sparkline({5}, 8), "▁");
  EXPECT_EQ(sparkline({}, 8), "");
  EXPECT_EQ(sparkline({1, 2}, 0), "");
}

TEST(Sparkline, BarsAreMeansAndLeaveOutWhatWasNotMeasured) {
  EXPECT_EQ(sparkline({2, 0, 6, 8, 4, 4}, 3), "▁█▅");  // 1, 7, 4
  EXPECT_EQ(sparkline({0, NAN, 1, INFINITY}, 8), "▁█");
}

TEST(Sparkline, ShowsAllOfFewValues) {
  EXPECT_EQ(sparkline({2.945, 2.3624}, 8), "█▁");
  EXPECT_EQ(sparkline({4, 3, 2}, 8), "█▅▁");
}

// A loss that begins at 100 leaves room for what follows.
TEST(Sparkline, TheFirstTenthDoesNotFlattenTheRest) {
  EXPECT_EQ(sparkline({100, 7, 6, 5, 4, 3, 2, 1, 0, 0}, 10), "██▇▆▅▄▃▂▁▁");
}

TEST(ProgressBar, FillsItsShareInEighths) {
  EXPECT_EQ(progress_bar(0, 4), "░░░░");
  EXPECT_EQ(progress_bar(0.5, 4), "██░░");
  EXPECT_EQ(progress_bar(0.53125, 4), "██▏░");
  EXPECT_EQ(progress_bar(1, 4), "████");
  EXPECT_EQ(progress_bar(7, 4), "████");
  EXPECT_EQ(progress_bar(0.3, 0), "");
}

TEST(InColumns, FillsOrCuts) {
  EXPECT_EQ(in_columns("äöü", 5), "äöü  ");
  EXPECT_EQ(in_columns("äöü", 3), "äöü");
  EXPECT_EQ(in_columns("äöüß", 3), "äö…");
  EXPECT_EQ(in_columns("ab", 0), "");
}

TEST(WeightMap, HasAColumnForEachList) {
  EXPECT_EQ(weight_lines({{1}, {0.5, 0.5}, {0.01, 0.09, 0.9}}, {.columns = 20}),
            (Lines{"0 ██▓▓··", "1   ▓▓░░", "2     ██", "  0 1 2"}));
  EXPECT_EQ(weight_lines({}, {}), Lines());
}

TEST(WeightMap, KeepsToTheRoom) {
  const std::vector<std::vector<double>> columns(9, {0.2, 0.2, 0.2, 0.2, 0.2});
  const Lines narrow = weight_lines(columns, {.columns = 7, .lines = 3});
  EXPECT_EQ(narrow, (Lines{"0 ▓▓▓▓▓", "2 ▓▓▓▓▓", "4 ▒▒▒▒▒", "  0 4 8", "a line adds up 2 sources",
                           "one of 2 sites is shown"}));
}

TEST(WeightMap, ColorsEndWithTheirCell) {
  const Lines lines = weight_lines({{1}, {0, 1}}, {.columns = 4, .color = true});
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0], "0 \x1b[48;5;229m \x1b[0m\x1b[48;5;17m \x1b[0m");
  EXPECT_EQ(lines[1], "1  \x1b[48;5;229m \x1b[0m");
}

}  // namespace
}  // namespace attnres::text_plot_test
