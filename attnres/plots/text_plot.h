// Small plots of characters, for terminals.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace attnres {

struct TextStyle {
  size_t columns = 80;
  size_t lines = 0;    // that there is room for; 0: any number
  bool color = false;  // whether the terminal has 256 colours
};

// The text, or its beginning and "…", in exactly `columns`.
std::string in_columns(std::string_view text, size_t columns);

// The values in at most `columns` bars of eight heights, each the mean of as many values that are
// next to each other; NaN is left out. The lowest bar is the least, the highest the largest of
// those after the first tenth of ten or more, since what a loss begins with would flatten all that
// follows.
std::string sparkline(const std::vector<double>& values, size_t columns);

// A bar that is filled by `share`, 0 to 1.
std::string progress_bar(double share, size_t columns);

// A column of cells for each list, of weights from 0 to 1, and a line for each entry:
//
//   0 █▓▒▒
//   1  ▓▒░
//   2   ▒▒
//     0 2
//
// Where there is room a cell is two characters wide. Weights that stand next to each other are
// added up in one line where there are more than `style.lines`, and columns are left out where they
// do not fit; a last line says so.
std::vector<std::string> weight_lines(const std::vector<std::vector<double>>& columns,
                                      const TextStyle& style);

}  // namespace attnres
