#include "attnres/plots/text_plot.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

#include "attnres/support/terminal.h"

namespace attnres {
namespace {

// Characters of a sparkline and of a bar's end, from an eighth to the whole.
constexpr std::array<const char*, 8> kHeights = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
constexpr std::array<const char*, 8> kWidths = {"▏", "▎", "▍", "▌", "▋", "▊", "▉", "█"};

// The character for weights up to a limit.
struct Shade {
  double most;
  const char* text;
};
constexpr std::array<Shade, 5> kShades = {
    {{0.03, "·"}, {0.12, "░"}, {0.3, "▒"}, {0.6, "▓"}, {INFINITY, "█"}}};
// Colours of the 256, dark blue to light yellow, for weights from 0 to 1.
constexpr std::array<int, 11> kWeightColors = {17, 18, 25, 31, 37, 43, 79, 115, 151, 187, 229};

std::string repeated(const char* text, size_t count) {
  std::string out;
  for (size_t i = 0; i < count; ++i) out += text;
  return out;
}

// `count` means of as many values that follow each other, give or take one.
std::vector<double> means_of_parts(const std::vector<double>& values, size_t count) {
  std::vector<double> out;
  for (size_t i = 0; i < count; ++i) {
    const size_t begin = i * values.size() / count, end = (i + 1) * values.size() / count;
    double sum = 0;
    for (size_t k = begin; k < end; ++k) sum += values[k];
    out.push_back(sum / static_cast<double>(end - begin));
  }
  return out;
}

std::string weight_cell(double weight, size_t width, bool color) {
  if (std::isnan(weight)) return std::string(width, ' ');
  if (!color) {
    const auto shade = std::find_if(kShades.begin(), kShades.end(),
                                    [&](const Shade& s) { return weight <= s.most; });
    return repeated(shade->text, width);
  }
  const double place = std::sqrt(std::clamp(weight, 0.0, 1.0));  // small weights differ most
  const auto index = static_cast<size_t>(std::lround(place * double(kWeightColors.size() - 1)));
  return fmt::format("\x1b[48;5;{}m{}", kWeightColors[index], std::string(width, ' '));
}

// The sum of the weights from `begin`, `count` of them; NaN where there is none.
double weight_of(const std::vector<double>& weights, size_t begin, size_t count) {
  if (begin >= weights.size()) return NAN;
  const size_t end = std::min(begin + count, weights.size());
  double sum = 0;
  for (size_t i = begin; i < end; ++i) sum += weights[i];
  return sum;
}

// The numbers of columns, under as many of them as have room.
std::string column_numbers(size_t columns, size_t every, size_t cell, size_t margin) {
  std::string line(margin, ' ');
  for (size_t i = 0; i * every < columns; ++i) {
    const std::string number = std::to_string(i * every);
    const size_t at = margin + i * cell;
    const bool fits = at + number.size() <= margin + cell * ((columns - 1) / every + 1);
    if (i > 0 && (line.size() >= at || !fits)) continue;
    line.append(at - line.size(), ' ');
    line += number;
  }
  return line;
}

size_t divided_up(size_t count, size_t by) {
  return (count + by - 1) / by;
}

}  // namespace

std::string in_columns(std::string_view text, size_t columns) {
  const size_t length = characters(text);
  if (length <= columns) return std::string(text) + std::string(columns - length, ' ');
  if (columns == 0) return "";
  size_t end = 0;
  for (size_t shown = 0; end < text.size(); ++end) {
    if ((text[end] & 0xc0) != 0x80 && ++shown == columns) break;
  }
  return std::string(text.substr(0, end)) + "…";
}

std::string sparkline(const std::vector<double>& values, size_t columns) {
  std::vector<double> known;
  std::copy_if(values.begin(), values.end(), std::back_inserter(known),
               [](double value) { return std::isfinite(value); });
  const std::vector<double> bars = means_of_parts(known, std::min(known.size(), columns));
  if (bars.empty()) return "";
  const auto later = bars.begin() + static_cast<ptrdiff_t>(bars.size() / 10);
  const double least = *std::min_element(bars.begin(), bars.end());
  const double most = *std::max_element(later, bars.end());
  std::string out;
  for (const double bar : bars) {
    const double height = most > least ? (bar - least) / (most - least) : 0;
    out += kHeights[static_cast<size_t>(std::lround(std::clamp(height, 0.0, 1.0) * 7))];
  }
  return out;
}

std::string progress_bar(double share, size_t columns) {
  const auto eighths = static_cast<size_t>(
      std::floor(std::clamp(share, 0.0, 1.0) * 8 * static_cast<double>(columns)));
  const size_t whole = eighths / 8, part = eighths % 8;
  return repeated(kWidths[7], whole) + (part > 0 ? kWidths[part - 1] : "") +
         repeated("░", columns - whole - (part > 0));
}

std::vector<std::string> weight_lines(const std::vector<std::vector<double>>& columns,
                                      const TextStyle& style) {
  size_t rows = 0;
  for (const std::vector<double>& weights : columns) rows = std::max(rows, weights.size());
  if (rows == 0) return {};
  const size_t together = style.lines > 0 ? divided_up(rows, style.lines) : 1;
  const size_t margin = std::to_string(rows - 1).size() + 1;
  const size_t room = style.columns > margin ? style.columns - margin : 1;
  const size_t every = divided_up(columns.size(), room);
  const size_t cell = every == 1 && 2 * columns.size() <= room ? 2 : 1;

  std::vector<std::string> lines;
  for (size_t row = 0; row < rows; row += together) {
    std::string line = fmt::format("{:>{}} ", row, margin - 1);
    for (size_t i = 0; i < columns.size(); i += every) {
      const double weight = weight_of(columns[i], row, together);
      const bool colored = style.color && !std::isnan(weight);
      line += weight_cell(weight, cell, style.color) + (colored ? "\x1b[0m" : "");
    }
    lines.push_back(line);
  }
  lines.push_back(column_numbers(columns.size(), every, cell, margin));
  if (together > 1) lines.push_back(fmt::format("a line adds up {} sources", together));
  if (every > 1) lines.push_back(fmt::format("one of {} sites is shown", every));
  return lines;
}

}  // namespace attnres
