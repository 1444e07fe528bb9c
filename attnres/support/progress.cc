#include "attnres/support/progress.h"

#include <fmt/core.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "attnres/support/terminal.h"

namespace attnres {
namespace {

constexpr double kTerminalInterval = 0.1;  // seconds
constexpr double kLogInterval = 10;

// The first `columns` characters of UTF-8 text, each taken to be one column wide.
std::string_view cut(std::string_view text, int columns) {
  size_t end = 0;
  for (int shown = 0; end < text.size(); ++end) {
    const bool starts_character = (static_cast<unsigned char>(text[end]) & 0xc0) != 0x80;
    if (starts_character && shown++ == columns) break;
  }
  return text.substr(0, end);
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
          .columns = [] { return static_cast<int>(terminal_columns(STDERR_FILENO).value_or(80)); }};
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

}  // namespace attnres
