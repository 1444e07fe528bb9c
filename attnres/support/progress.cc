#include "attnres/support/progress.h"

#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <span>

namespace attnres {
namespace {

constexpr double kTerminalInterval = 0.1;  // seconds
constexpr double kLogInterval = 10;

int terminal_columns() {
  winsize size = {};
  const bool known = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : 80;
}

// The first `columns` characters of UTF-8 text, each taken to be one column wide.
std::string_view cut(std::string_view text, int columns) {
  size_t end = 0;
  for (int shown = 0; end < text.size(); ++end) {
    const bool starts_character = (static_cast<unsigned char>(text[end]) & 0xc0) != 0x80;
    if (starts_character && shown++ == columns) break;
  }
  return text.substr(0, end);
}

// The value in the largest unit that leaves 1 or more of it: "1.2M". Whole numbers of the smallest.
std::string scaled(double value, double step, std::span<const std::string_view> units,
                   std::string_view separator) {
  size_t unit = 0;
  // 999.95 would be printed as 1000.0.
  while (unit + 1 < units.size() && std::abs(value) >= step - (unit > 0 ? 0.05 : 0.5)) {
    value /= step;
    ++unit;
  }
  return fmt::format("{:.{}f}{}{}", value, unit == 0 ? 0 : 1, separator, units[unit]);
}

}  // namespace

double monotonic_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

ProgressOutput standard_error() {
  const char* term = std::getenv("TERM");
  return {.write =
              [](std::string_view text) {
                std::fwrite(text.data(), 1, text.size(), stderr);
                std::fflush(stderr);
              },
          .terminal = ::isatty(STDERR_FILENO) == 1 && std::string_view(term ? term : "") != "dumb",
          .columns = terminal_columns};
}

ProgressLine::ProgressLine(ProgressOutput output) : output_(std::move(output)) {}

ProgressLine::~ProgressLine() {
  finish();
}

void ProgressLine::update(std::string text) {
  text_ = std::move(text);
  shown_ = false;
  if (output_.clock() >= next_) show();
}

void ProgressLine::message(std::string_view text) {
  output_.write(fmt::format("{}{}\n", on_line_ ? "\r\x1b[K" : "", text));
  if (on_line_) show();
}

void ProgressLine::finish() {
  if (!shown_) show();
  if (on_line_) output_.write("\n");
  on_line_ = false;
  next_ = 0;
}

void ProgressLine::show() {
  if (output_.terminal) {
    // The last column stays free: terminals differ in what a character there does.
    output_.write(fmt::format("\r{}\x1b[K", cut(text_, output_.columns() - 1)));
    on_line_ = true;
  } else {
    output_.write(text_ + "\n");
  }
  shown_ = true;
  next_ = output_.clock() + (output_.terminal ? kTerminalInterval : kLogInterval);
}

Eta::Eta(int64_t total, int64_t done, Clock clock)
    : total_(total), first_(done), clock_(std::move(clock)), start_(clock_()) {}

double Eta::rate(int64_t done) const {
  const double elapsed = clock_() - start_;
  return done > first_ && elapsed > 0 ? static_cast<double>(done - first_) / elapsed : 0;
}

double Eta::left(int64_t done) const {
  if (done >= total_) return 0;
  return static_cast<double>(total_ - done) / rate(done);
}

std::string format_duration(double seconds) {
  if (!std::isfinite(seconds)) return "?";
  // Each limit is where rounding would reach the next form: no "60s", no "1000ms".
  if (seconds < 0.9995) return fmt::format("{:.0f}ms", seconds * 1e3);
  if (seconds < 9.95) return fmt::format("{:.1f}s", seconds);
  const int64_t whole = std::llround(seconds);
  if (whole < 60) return fmt::format("{}s", whole);
  if (whole < 3600) return fmt::format("{}m{:02}s", whole / 60, whole % 60);
  const int64_t minutes = whole / 60, hours = minutes / 60;
  if (hours < 24) return fmt::format("{}h{:02}m", hours, minutes % 60);
  return fmt::format("{}d{:02}h", hours / 24, hours % 24);
}

std::string format_count(double count) {
  static constexpr std::array<std::string_view, 5> kUnits = {"", "K", "M", "B", "T"};
  return scaled(count, 1000, kUnits, "");
}

std::string format_rate(double per_second, std::string_view unit) {
  return fmt::format("{} {}/s", format_count(per_second), unit);
}

std::string format_bytes(double bytes) {
  static constexpr std::array<std::string_view, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  return scaled(bytes, 1024, kUnits, " ");
}

}  // namespace attnres
