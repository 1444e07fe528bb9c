// The inspect subcommand: depth weights as rows of cells.
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "app/inspect.h"
#include "attnres/plots/plot.h"
#include "attnres/support/terminal.h"

namespace attnres {
namespace {

// The nearest of the 6 x 6 x 6 mixed colours among a terminal's 256: levels 0, 95, 135, ..., 255.
int terminal_color(uint32_t rgb) {
  const auto level = [&](int shift) {
    const int value = static_cast<int>(rgb >> shift & 0xffU);
    return value < 48 ? 0 : std::min(5, std::max(1, (value - 35) / 40));
  };
  return 16 + 36 * level(16) + 6 * level(8) + level(0);
}

struct CellStyle {
  bool numbers;  // percent; otherwise a character, a blank one in colour
  bool color;

  size_t width() const { return numbers ? 4 : 2; }
};

// The shade of weights from `least` on; below the first they are blank.
struct HeatShade {
  double least;
  char text;
};
constexpr std::array<HeatShade, 9> kHeatShades = {{{0.01, '.'},
                                                   {0.03, ':'},
                                                   {0.06, '-'},
                                                   {0.12, '='},
                                                   {0.2, '+'},
                                                   {0.3, '*'},
                                                   {0.45, '#'},
                                                   {0.6, '&'},
                                                   {0.8, '@'}}};

char shade_of(double weight) {
  char text = ' ';
  for (const HeatShade& shade : kHeatShades) {
    if (weight >= shade.least) text = shade.text;
  }
  return text;
}

std::string shades_text() {
  std::string text;
  for (const HeatShade& shade : kHeatShades) {  // with spaces that do not break
    text += fmt::format("{}{}\u00a0{:.0f}\u00a0%",
                        text.empty() ? "characters, of weights from: " : ", ", shade.text,
                        100 * shade.least);
  }
  return text;
}

std::string heat_cell(double weight, const CellStyle& style) {
  std::string text = style.numbers ? fmt::format("{:4.0f}", 100 * weight)
                     : style.color ? "  "
                                   : std::string(2, shade_of(weight));
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

// The names of columns, upright where these are narrow: "b12" in three lines.
std::vector<std::string> heading_lines(const std::vector<std::string>& headings,
                                       const CellStyle& style) {
  if (style.numbers) {
    std::string line;
    for (const std::string& heading : headings)
      line += fmt::format("{:>{}}", heading, style.width());
    return {line};
  }
  size_t height = 0;
  for (const std::string& heading : headings) height = std::max(height, heading.size());
  std::vector<std::string> lines(height);
  for (size_t i = 0; i < height; ++i) {
    for (const std::string& heading : headings) {
      lines[i] +=
          fmt::format("{:>{}}", i < heading.size() ? heading.substr(i, 1) : "", style.width());
    }
  }
  return lines;
}

// The columns from `begin` to `end`, the last part with the largest of each row.
void print_part(const TokenDepthWeights& weights, const std::vector<std::string>& row_names,
                size_t begin, size_t end, const CellStyle& style) {
  const bool is_last = end == weights.sources.size();
  std::vector<std::string> headings;
  for (size_t i = begin; i < end; ++i) headings.push_back(initial_and_number(weights.sources[i]));
  std::vector<std::string> lines = heading_lines(headings, style);
  if (is_last) lines.back() += "  most";
  for (const std::string& line : lines) fmt::print("{:{}}{}\n", "", kHeatRowName, line);
  for (size_t row = 0; row < row_names.size(); ++row) {
    const std::vector<double>& cells = weights.weights[row];
    const size_t shown = std::min(kHeatRowName, characters(row_names[row]));
    fmt::print("{}{}", row_names[row], std::string(kHeatRowName - shown, ' '));
    for (size_t i = begin; i < end; ++i) fmt::print("{}", heat_cell(cells[i], style));
    const size_t most = std::max_element(cells.begin(), cells.end()) - cells.begin();
    fmt::print("{}\n", is_last ? "  " + initial_and_number(weights.sources[most]) : "");
  }
}

}  // namespace

void print_heat(const std::string& what, const TokenDepthWeights& weights,
                const std::vector<std::string>& row_names) {
  constexpr size_t kDominant = 6;
  const size_t columns = weights.sources.size();
  const CellStyle style = {.numbers = kHeatRowName + 4 * columns + kDominant <= text_columns(),
                           .color = shows_color(STDOUT_FILENO)};
  const char* unit = style.numbers ? "percent; " : style.color ? "the darker the more; " : "";
  print_wrapped(
      fmt::format("{}: {} ({}{})", what, weights.name, unit, heat_legend_text(weights.sources)));
  if (!style.numbers && !style.color) print_wrapped(shades_text());
  const size_t room = (text_columns() - kHeatRowName - kDominant) / style.width();
  const size_t parts = (columns + room - 1) / room;
  for (size_t part = 0; part < parts; ++part) {
    fmt::print("\n");
    print_part(weights, row_names, part * columns / parts, (part + 1) * columns / parts, style);
  }
}

}  // namespace attnres
