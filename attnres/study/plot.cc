#include "attnres/study/plot.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "attnres/study/html.h"
#include "attnres/study/page_parts.h"
#include "attnres/support/error.h"
#include "attnres/support/file.h"

extern char** environ;

namespace attnres {
namespace fs = std::filesystem;
namespace {

// A folder of our own under the system's temporary folder, removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (fs::temp_directory_path() / "attnres-plot-XXXXXX").string();
    require(::mkdtemp(name.data()) != nullptr, "{}: cannot make a temporary folder: {}", name,
            std::strerror(errno));
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

class FileActions {
 public:
  FileActions() { posix_spawn_file_actions_init(&actions_); }
  ~FileActions() { posix_spawn_file_actions_destroy(&actions_); }
  FileActions(const FileActions&) = delete;
  FileActions& operator=(const FileActions&) = delete;
  posix_spawn_file_actions_t* get() { return &actions_; }

 private:
  posix_spawn_file_actions_t actions_;
};

void write_text(const fs::path& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary);
  out << text;
  out.close();
  require(out.good(), "{}: cannot write; is the disk full?", path.string());
}

void replace_all(std::string& text, const std::string& from, const std::string& to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
    text.replace(at, from.size(), to);
  }
}

// Removes every <tag>...</tag>.
void erase_elements(std::string& text, const std::string& tag) {
  const std::string open = "<" + tag + ">", close = "</" + tag + ">";
  for (size_t from = 0; (from = text.find(open, from)) != std::string::npos;) {
    const size_t to = text.find(close, from);
    if (to == std::string::npos) return;
    text.erase(from, to + close.size() - from);
  }
}

// The <svg> element of gnuplot's file, made fit to stand among others in one HTML page: ids with a
// prefix, no namespaces (HTML needs none), no titles that a browser would show as tooltips.
std::string inline_svg(const std::string& file, const std::string& id, const std::string& alt) {
  const size_t open = file.find("<svg");
  const size_t body = open == std::string::npos ? open : file.find('>', open);
  const size_t view = file.find("viewBox=\"", open);
  const size_t end = file.rfind("</svg>");
  require(body != std::string::npos && view < body && end != std::string::npos && end > body,
          "gnuplot printed no SVG; is `gnuplot --version` 5.2 or newer?");
  const std::string view_box = file.substr(view, file.find('"', view + 9) + 1 - view);
  std::string inner = file.substr(body + 1, end - body - 1);
  erase_elements(inner, "title");
  erase_elements(inner, "desc");
  replace_all(inner, "id='", "id='" + id + "-");
  replace_all(inner, "id=\"", "id=\"" + id + "-");
  replace_all(inner, "xlink:href='#", "href='#" + id + "-");
  replace_all(inner, "url(#", "url(#" + id + "-");
  return fmt::format("<svg {} role=\"img\" aria-label=\"{}\">{}</svg>\n", view_box,
                     escape_html(alt), inner);
}

// A gnuplot string. Single quotes keep backquotes, macros and escapes from being interpreted.
std::string quote(std::string text) {
  replace_all(text, "'", "''");
  return "'" + text + "'";
}

std::string rgb(uint32_t color) {
  return fmt::format("rgb '#{:06x}'", color);
}

uint32_t blend(uint32_t a, uint32_t b, double t) {
  uint32_t out = 0;
  for (int shift : {16, 8, 0}) {
    const double from = (a >> shift) & 0xFF, to = (b >> shift) & 0xFF;
    out |= uint32_t(std::lround(from + (to - from) * t)) << shift;
  }
  return out;
}

constexpr uint32_t kWhite = 0xffffff;
constexpr uint32_t kInk = 0x333333;
constexpr uint32_t kOutline = 0xd55e00;

// As wide as a phone, so that text keeps its size there, and half a page holds a plot too.
constexpr int kWidth = 420;

std::string terminal(int height) {
  return fmt::format(
      "set encoding utf8\n"
      "set terminal svg size {},{} dynamic noenhanced font 'sans-serif,13'\n"
      "unset key\n",
      kWidth, height);
}

// gnuplot's point types for markers 0 .. 5: filled circle, square, triangle, diamond, inverted
// triangle, pentagon.
constexpr int kPointTypes[] = {7, 5, 9, 13, 11, 15};

std::string dash_type(const std::vector<int>& dash) {
  if (dash.empty()) return "dt solid";
  std::string out = "dt (";
  for (size_t i = 0; i < dash.size(); ++i) out += fmt::format("{}{}", i ? "," : "", dash[i]);
  return out + ")";
}

std::string curve_command(const Curve& curve, const std::string& file, size_t points) {
  const std::string data = fmt::format("'{}' using 1:2 with ", file);
  switch (curve.kind) {
    case Curve::Kind::background:
      return data + fmt::format("lines lw 1.3 dt solid lc {}",
                                rgb(blend(curve.style.color, kWhite, 0.62)));
    case Curve::Kind::reference:
      return data + fmt::format("lines lw 1.5 dt (1,3) lc {}", rgb(curve.style.color));
    case Curve::Kind::fit:
      return data + fmt::format("lines lw 1.6 {} lc {}", dash_type(curve.style.dash),
                                rgb(curve.style.color));
    case Curve::Kind::points:
      return data + fmt::format("points lw 1 lc {} pt {} ps 0.65", rgb(curve.style.color),
                                kPointTypes[curve.style.marker]);
    case Curve::Kind::measured:
      break;
  }
  const size_t every = std::max<size_t>(1, points / 16);
  return data + fmt::format("linespoints lw 2 {} lc {} pt {} ps 0.65 pi {}",
                            dash_type(curve.style.dash), rgb(curve.style.color),
                            kPointTypes[curve.style.marker], every);
}

// Every n-th of `count` names, so that at most `most` are drawn.
std::string ticks(const std::vector<std::string>& names, size_t most) {
  const size_t step = (names.size() + most - 1) / std::max<size_t>(most, 1);
  std::string out = "(";
  for (size_t i = 0; i < names.size(); i += std::max<size_t>(step, 1)) {
    out += fmt::format("{}{} {}", i ? ", " : "", quote(names[i]), i);
  }
  return out + ")";
}

// Names for x = 0, 1, ..., as many as fit beside each other, turned where they are long.
std::string named_ticks(const std::vector<std::string>& names) {
  constexpr size_t kCharacters = 44;  // beside each other
  size_t longest = 1;
  for (const std::string& name : names) longest = std::max(longest, name.size() + 1);
  const bool fit = longest * names.size() <= kCharacters;
  return ticks(names, 16) + (fit ? "" : " rotate by 40 right font 'sans-serif,11'");
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

}  // namespace

std::string run_gnuplot(const std::string& script,
                        const std::map<std::string, std::string>& files) {
  const TemporaryFolder folder;
  for (const auto& [name, text] : files) write_text(folder.path() / name, text);
  write_text(folder.path() / "script", script);

  // Standard input is a file, not a pipe: a child that stops early cannot break our writing.
  FileActions actions;
  posix_spawn_file_actions_addchdir_np(actions.get(), folder.path().c_str());
  posix_spawn_file_actions_addopen(actions.get(), STDIN_FILENO, "script", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(actions.get(), STDOUT_FILENO, "printed",
                                   O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_addopen(actions.get(), STDERR_FILENO, "errors",
                                   O_WRONLY | O_CREAT | O_TRUNC, 0600);
  char program[] = "gnuplot", ignore_settings[] = "-d";
  char* arguments[] = {program, ignore_settings, nullptr};
  pid_t child = 0;
  const int error = posix_spawnp(&child, program, actions.get(), nullptr, arguments, environ);
  require(error == 0, "cannot run gnuplot, which draws the report's plots: {}; install gnuplot-nox",
          std::strerror(error));
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    require(errno == EINTR, "lost track of gnuplot: {}", std::strerror(errno));
  }
  require(WIFEXITED(status) && WEXITSTATUS(status) == 0, "gnuplot failed: {}",
          read_file(folder.path() / "errors"));
  return read_file(folder.path() / "printed");
}

LineStyle line_style(size_t index) {
  static constexpr uint32_t kColors[] = {0x0072b2, 0xd55e00, 0x009e73, 0xcc79a7,
                                         0x444444, 0xe69f00, 0x56b4e9};
  static const std::vector<int> kDashes[] = {{}, {8, 4}, {3, 3}, {10, 3, 2, 3}};
  return {kColors[index % 7], int(index % 6), kDashes[index % 4]};
}

std::string legend_swatch(const LineStyle& style) {
  // Around (21, 7).
  static constexpr const char* kMarkers[] = {"M17,7a4,4 0 1,0 8,0a4,4 0 1,0 -8,0z",
                                             "M17.4,3.4h7.2v7.2h-7.2z",
                                             "M21,2.2l4.4,7.6h-8.8z",
                                             "M21,2l5,5l-5,5l-5,-5z",
                                             "M21,11.8l4.4,-7.6h-8.8z",
                                             "M21,2l4.8,3.5l-1.8,5.6h-6l-1.8,-5.6z"};
  std::string dash;
  for (int length : style.dash) dash += fmt::format("{}{}", dash.empty() ? "" : ",", length);
  return fmt::format(
      "<svg class=\"swatch\" width=\"42\" height=\"14\" viewBox=\"0 0 42 14\" aria-hidden=\"true\">"
      "<path d=\"M1,7H41\" stroke=\"#{0:06x}\" stroke-width=\"2\" stroke-dasharray=\"{1}\"/>"
      "<path d=\"{2}\" fill=\"#{0:06x}\"/></svg>",
      style.color, dash.empty() ? "none" : dash, kMarkers[style.marker]);
}

std::string plain_label(const std::string& name) {
  constexpr size_t kLongest = 24;
  constexpr std::string_view kKept = " ._+-,:()%";
  std::string text = name, label;
  replace_all(text, " · ", " ");
  for (const char c : text.substr(0, kLongest)) {
    const bool kept = std::isalnum(static_cast<unsigned char>(c)) || kKept.find(c) != kKept.npos;
    label += kept ? c : '_';
  }
  return label;
}

std::string draw(const LinePlot& plot, const std::string& id) {
  std::map<std::string, std::string> files;
  std::string below, above;
  PlotRange x_range, y_range;
  const auto drawable = [&](double x, double y) {
    return std::isfinite(x) && std::isfinite(y) && (!plot.log_x || x > 0) && (!plot.log_y || y > 0);
  };
  const auto add = [](std::string& commands, const std::string& command) {
    commands += (commands.empty() ? "" : ", ") + command;
  };
  for (const Curve& curve : plot.curves) {
    const std::string name = fmt::format("curve{}", files.size());
    std::string data, bars;
    size_t points = 0;
    for (size_t i = 0; i < curve.x.size(); ++i) {
      const double x = curve.x[i], y = curve.y[i];
      if (!drawable(x, y)) continue;
      data += fmt::format("{:.9g} {:.9g}\n", x, y);
      x_range.include(x);
      y_range.include(y);
      ++points;
      if (curve.low.empty() || !drawable(curve.low[i], curve.high[i])) continue;
      bars += fmt::format("{:.9g} {:.9g} {:.9g} {:.9g}\n", x, y, curve.low[i], curve.high[i]);
      y_range.include(curve.low[i]);
      y_range.include(curve.high[i]);
    }
    if (points == 0) continue;
    files[name] = data;
    const bool is_above = curve.kind == Curve::Kind::measured || curve.kind == Curve::Kind::points;
    add(is_above ? above : below, curve_command(curve, name, points));
    if (bars.empty()) continue;
    files["bars-" + name] = bars;
    add(below, fmt::format("'bars-{}' using 1:2:3:4 with yerrorbars lw 1.2 pt 7 ps 0 lc {}", name,
                           rgb(curve.style.color)));
  }
  require(x_range.low <= x_range.high, "plot \"{}\": it has no finite point", plot.alt);

  std::string script = terminal(290);
  script += fmt::format(
      "set border 3 lc {0}\nset tics nomirror scale 0.5 textcolor {1}\n"
      "set grid ytics lt 1 dt solid lw 1 lc rgb '#e4e4e4'\n"
      "set xlabel {2} textcolor {1}\nset ylabel {3} textcolor {1} offset 0.5\n"
      "set format '%g'\nset rmargin 2.5\nset tmargin 0.8\nset bars 0.6\n",
      rgb(0x999999), rgb(kInk), quote(plot.x_label), quote(plot.y_label));
  const double x_low = x_range.low, x_high = x_range.high;
  if (plot.log_x) {
    const double slack = x_high > x_low ? std::pow(x_high / x_low, 0.04) : 2;
    script += log_axis("x", x_low / slack, x_high * slack) +
              fmt::format("set xrange [{:.9g}:{:.9g}]\n", x_low / slack, x_high * slack);
  } else {
    double slack = x_high > x_low ? 0.02 * (x_high - x_low) : 0.5;
    if (!plot.x_names.empty()) slack = 0.3;
    script += fmt::format("set xrange [{:.9g}:{:.9g}]\n", x_low - slack, x_high + slack);
  }
  if (plot.whole_x) {
    const double step = std::max(1.0, std::ceil((x_high - x_low) / 12));
    script += fmt::format("set xtics {:.9g},{:.9g},{:.9g}\n", x_low, step, x_high);
  }
  if (!plot.x_names.empty()) script += "set xtics " + named_ticks(plot.x_names) + "\n";
  const bool given = std::isfinite(plot.y_low) && std::isfinite(plot.y_high);
  if (given) {
    y_range = {plot.y_low, plot.y_high};
  } else if (plot.log_y) {
    const double slack = std::max(std::pow(y_range.high / y_range.low, 0.06), 1.001);
    y_range = {y_range.low / slack, y_range.high * slack};
  }
  if (plot.log_y) script += log_axis("y", y_range.low, y_range.high);
  if (given || plot.log_y) {
    script += fmt::format("set yrange [{:.9g}:{:.9g}]\n", y_range.low, y_range.high);
  }
  script += "plot " + below + (below.empty() || above.empty() ? "" : ", ") + above + "\n";
  return inline_svg(run_gnuplot(script, files), id, plot.alt);
}

std::string draw(const HeatMap& plot, const std::string& id) {
  const size_t rows = plot.values.size();
  const size_t columns = plot.column_names.size();
  require(rows > 0 && columns > 0 && plot.row_names.size() == rows,
          "plot \"{}\": expected a name for each row and column, came {} rows, {} names and {} "
          "columns",
          plot.alt, rows, plot.row_names.size(), columns);

  constexpr int kRight = 14, kTop = 8, kBottom = 50, kAxis = 38, kCharacter = 8;
  size_t longest = 3;
  for (const std::string& name : plot.row_names) longest = std::max(longest, name.size());
  const int left = plot.small ? kRight : kAxis + kCharacter * static_cast<int>(longest);
  const double cell_width = double(kWidth - left - kRight) / double(columns);
  const double cell_height = std::clamp(330.0 / double(rows), 7.0, 30.0);
  const int bottom = plot.small ? kTop : kBottom;
  const int height = kTop + bottom + int(std::lround(cell_height * double(rows)));
  const bool numbers = !plot.small && cell_width >= 15 + 7 * plot.decimals && cell_height >= 15;
  const double half = std::min(cell_width, cell_height) >= 9 ? 0.475 : 0.502;

  std::string cells, outlines, dark, light;
  for (size_t row = 0; row < rows; ++row) {
    for (size_t column = 0; column < plot.values[row].size(); ++column) {
      const double value = plot.values[row][column];
      if (!std::isfinite(value)) continue;
      const uint32_t color = heat_color(value, plot.low, plot.high);
      const std::string cell = fmt::format("{} {} {} {}", column, row, half, half);
      cells += fmt::format("{} {}\n", cell, color);
      if (!plot.outlined.empty() && plot.outlined[row][column]) outlines += cell + "\n";
      if (numbers) {
        (is_dark(color) ? light : dark) +=
            fmt::format("{} {} {}\n", column, row, short_decimal(value, plot.decimals));
      }
    }
  }

  std::string script = terminal(height);
  script += fmt::format(
      "set lmargin at screen {:.5f}\nset rmargin at screen {:.5f}\n"
      "set tmargin at screen {:.5f}\nset bmargin at screen {:.5f}\n",
      double(left) / kWidth, 1 - double(kRight) / kWidth, 1 - double(kTop) / height,
      double(bottom) / height);
  script += fmt::format("unset border\nset tics nomirror scale 0 textcolor {}\n", rgb(kInk));
  if (!plot.small) {
    script +=
        fmt::format("set xlabel {0} textcolor {2} offset 0,0.4\nset ylabel {1} textcolor {2}\n",
                    quote(plot.x_label), quote(plot.y_label), rgb(kInk));
  }
  script += fmt::format("set xrange [-0.5:{}.5]\nset yrange [{}.5:-0.5]\n", columns - 1, rows - 1);
  if (plot.small) {
    script += "unset tics\n";
  } else {
    script +=
        fmt::format("set xtics {}\nset ytics {}\n", ticks(plot.column_names, 13),
                    ticks(plot.row_names, std::max<size_t>(1, size_t(rows * cell_height / 17))));
  }
  std::map<std::string, std::string> files = {{"cells", cells}};
  script += "plot 'cells' using 1:2:3:4:5 with boxxyerror lc rgb variable fs solid noborder";
  if (!outlines.empty()) {
    files["outlines"] = outlines;
    script += fmt::format(
        ", 'outlines' using 1:2:3:4 with boxxyerror lw 1.6 lc {0} fs empty border lc {0}",
        rgb(kOutline));
  }
  for (const auto& [name, text, color] :
       {std::tuple{"dark", &dark, kInk}, std::tuple{"light", &light, kWhite}}) {
    if (text->empty()) continue;
    files[name] = *text;
    script +=
        fmt::format(", '{}' using 1:2:3 with labels font 'sans-serif,11' tc {}", name, rgb(color));
  }
  return inline_svg(run_gnuplot(script + "\n", files), id, plot.alt);
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
