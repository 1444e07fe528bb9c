// The watch subcommand.
#include <fmt/core.h>
#include <poll.h>
#include <termios.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "app/commands.h"
#include "app/options.h"
#include "app/output.h"
#include "attnres/study/live_view.h"
#include "attnres/study/study_data.h"
#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "attnres/support/interrupt.h"
#include "attnres/support/progress.h"
#include "attnres/support/terminal.h"
#include "attnres/train/run_folder/run_folder.h"

namespace attnres {
namespace fs = std::filesystem;
namespace {

struct WatchOptions {
  std::string folder;
  bool once = false;
};

// Whether a frame can be drawn over the one before.
bool is_screen() {
  const char* term = std::getenv("TERM");
  return ::isatty(STDOUT_FILENO) == 1 && std::string_view(term != nullptr ? term : "") != "dumb";
}

TextStyle style_of_output() {
  return {.columns = text_columns(), .color = shows_color(STDOUT_FILENO)};
}

struct Look {
  std::string frame;
  bool is_done = false;
};

Look look_at(const fs::path& folder, const TextStyle& style) {
  if (is_study_folder(folder)) {
    const LiveStudy study = read_live_study(folder);
    return {draw_live(study, style), study.is_done()};
  }
  require(path_exists(RunPaths{folder}.run_json()),
          "{}: expected the folder of a run or of a study, with run.json or study.json in it",
          folder.string());
  const LiveRun run = read_live_run(folder);
  return {draw_live(run, style), run.is_done()};
}

// The whole screen while it lives, beside what was there before, and keys as they are pressed.
class LiveScreen {
 public:
  LiveScreen() {
    reads_keys_ = ::isatty(STDIN_FILENO) == 1 && ::tcgetattr(STDIN_FILENO, &before_) == 0;
    if (reads_keys_) {
      termios keys = before_;
      keys.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
      ::tcsetattr(STDIN_FILENO, TCSANOW, &keys);
    }
    // The other screen, no cursor, and lines that are cut where the terminal ends.
    print("\x1b[?1049h\x1b[?25l\x1b[?7l");
  }
  ~LiveScreen() {
    std::fputs("\x1b[?7h\x1b[?25h\x1b[?1049l", stdout);
    std::fflush(stdout);
    if (reads_keys_) ::tcsetattr(STDIN_FILENO, TCSANOW, &before_);
  }
  LiveScreen(const LiveScreen&) = delete;
  LiveScreen& operator=(const LiveScreen&) = delete;

  static void show(const std::string& frame) {
    std::string text = "\x1b[H";
    for (const char c : frame) text += c == '\n' ? std::string("\x1b[K\n") : std::string(1, c);
    print(text + "\x1b[J");
  }

  // Waits, and says whether the user wants to leave.
  bool waits_to_leave(double seconds) const {
    pollfd keys = {.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
    const int ready = ::poll(&keys, reads_keys_ ? 1 : 0, static_cast<int>(1000 * seconds));
    if (interrupted()) return true;
    char key = 0;
    if (ready != 1 || ::read(STDIN_FILENO, &key, 1) != 1) return (keys.revents & POLLHUP) != 0;
    return key == 'q' || key == 'Q';
  }

 private:
  static void print(const std::string& text) {
    fmt::print("{}", text);
    flush_output();
  }

  termios before_ = {};
  bool reads_keys_ = false;
};

// Until it is done, or the user leaves. Returns the last frame.
std::string watch_live(const fs::path& folder) {
  const InterruptGuard interrupt;
  const LiveScreen screen;
  while (true) {
    const double start = monotonic_seconds();
    TextStyle style = style_of_output();
    style.lines = std::max<size_t>(terminal_lines(STDOUT_FILENO).value_or(24), 10) - 1;
    const Look look = look_at(folder, style);
    LiveScreen::show(look.frame + "q leaves");
    // A long log takes a moment to read: a tenth of the time at most goes into it.
    const double pause = std::max(1.0, 9 * (monotonic_seconds() - start));
    if (look.is_done || screen.waits_to_leave(pause)) return look.frame;
  }
}

void run_watch(const WatchOptions& options) {
  require_no_part_of_study(options.folder);
  require_trained(options.folder);
  if (options.once || !is_screen()) {
    fmt::print("{}", look_at(options.folder, style_of_output()).frame);
    return;
  }
  look_at(options.folder, style_of_output());  // errors before the screen is taken
  const std::string last = watch_live(options.folder);
  fmt::print("{}", last);
}

}  // namespace

void add_watch_command(CLI::App& app) {
  CLI::App& command = *app.add_subcommand(
      "watch",
      "Show a run or a study in the terminal while it goes on. Shows progress, losses, speed and\n"
      "depth weights, leaves what it watches alone, and ends when that is done, or with q or "
      "Ctrl-C.");
  const auto options = std::make_shared<WatchOptions>();
  add_path(command, "folder DIR", options->folder, "a run's or a study's folder")->required();
  command.add_flag("--once", options->once,
                   "print what is there now and end, as it does where the output is no terminal");
  command.footer(
      "Examples:\n"
      "  attnres watch runs/tiny\n"
      "  attnres watch studies/block-size --once");
  command.callback([options] { run_watch(*options); });
}

}  // namespace attnres
