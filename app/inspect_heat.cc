// The inspect subcommand: depth weights as rows of cells.
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>

#include "app/inspect.h"
#include "attnres/study/plot.h"
#include "attnres/support/terminal.h"

namespace attnres {
namespace {

// Of the 256 colours that terminals have, one of the 6 x 6 x 6 that are mixed: 0, 95, 135, ...,
// 255.
int terminal_color(uint32_t rgb) {
  const auto level = [&](int shift) {
    const int value = static_cast<int>(rgb >> shift & 0xffU);
    return value < 48 ? 0 : std::min(5, std::max(1, (value - 35) / 40));
  };
  return 16 + 36 * level(16) + 6 * level(8) + level(0);
}

struct CellStyle {
  bool numbers;  // percent; otherwise a character that is the darker the more it is
  bool color;
};

std::string heat_cell(double weight, const CellStyle& style) {
  static constexpr std::string_view kShades = " .:-=+*#%@";
  const auto shade = static_cast<size_t>(std::clamp(weight * 10, 0.0, 9.0));
  std::string text = style.numbers ? fmt::format("{:4.0f}", 100 * weight)
                     : style.color ? "  "
                                   : std::string(2, kShades[shade]);
  if (!style.color) return text;
  constexpr double kDark = 0.4;  // the scale is dark from here on
  return fmt::format("\x1b[48;5;{};38;5;{}m{}\x1b[0m", terminal_color(heat_color(weight, 0, 1)),
                     weight > kDark ? 231 : 16, text);
}

// "e embedding, b block, p partial sum"
std::string heat_legend_text(const std::vector<std::string>& sources) {
  std::vector<std::string> kinds;
  std::string text;
  for (const std::string& source : sources) {
    const std::string kind = source.substr(0, source.find_last_not_of("0123456789 ") + 1);
    if (std::find(kinds.begin(), kinds.end(), kind) != kinds.end()) continue;
    kinds.push_back(kind);
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", kind.substr(0, 1), kind);
  }
  return text;
}

}  // namespace

void print_heat(const TokenDepthWeights& weights, const std::vector<std::string>& row_names) {
  constexpr size_t kDominant = 6;
  const size_t columns = weights.sources.size();
  const CellStyle style = {.numbers = kHeatRowName + 4 * columns + kDominant <= text_columns(),
                           .color = shows_color(STDOUT_FILENO)};
  const size_t width = style.numbers ? 4 : 2;
  fmt::print("{} ({}{})\n\n{:{}}", weights.name,
             style.numbers ? "percent; " : "the darker the more; ",
             heat_legend_text(weights.sources), "", kHeatRowName);
  for (const std::string& source : weights.sources) {
    const std::string heading = initial_and_number(source);
    fmt::print("{:>{}}", style.numbers ? heading : heading.substr(heading.size() - 1), width);
  }
  fmt::print("  most\n");
  for (size_t row = 0; row < row_names.size(); ++row) {
    const std::vector<double>& cells = weights.weights[row];
    const size_t shown = std::min(kHeatRowName, characters(row_names[row]));
    fmt::print("{}{}", row_names[row], std::string(kHeatRowName - shown, ' '));
    for (const double weight : cells) fmt::print("{}", heat_cell(weight, style));
    const size_t most = std::max_element(cells.begin(), cells.end()) - cells.begin();
    fmt::print("  {}\n", initial_and_number(weights.sources[most]));
  }
}

}  // namespace attnres
