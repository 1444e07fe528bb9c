#include "attnres/plots/gnuplot.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "attnres/plots/html.h"
#include "attnres/support/error.h"
#include "attnres/support/file.h"

extern char** environ;

namespace attnres::gnuplot {
namespace fs = std::filesystem;
namespace {

// A folder of our own under the system's temporary folder, removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (fs::temp_directory_path() / "attnres-plot-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) {
      fail("{}: cannot make a temporary folder: {}", name, std::strerror(errno));
    }
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

}  // namespace

std::string run(const std::string& script, const Files& files) {
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

std::string inline_svg(const std::string& script, const Files& files, const std::string& id,
                       const std::string& alt) {
  const std::string file = run(script, files);
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

std::string terminal(int height) {
  return fmt::format(
      "set encoding utf8\n"
      "set terminal svg size {},{} dynamic noenhanced font 'sans-serif,13'\n"
      "unset key\n",
      kWidth, height);
}

std::string quote(std::string text) {
  replace_all(text, "'", "''");
  return "'" + text + "'";
}

std::string rgb(uint32_t color) {
  return fmt::format("rgb '#{:06x}'", color);
}

std::string dash_type(const std::vector<int>& dash) {
  if (dash.empty()) return "dt solid";
  std::string out = "dt (";
  for (size_t i = 0; i < dash.size(); ++i) out += fmt::format("{}{}", i ? "," : "", dash[i]);
  return out + ")";
}

int point_type(int marker) {
  // Filled circle, square, triangle, diamond, inverted triangle, pentagon.
  constexpr int kTypes[] = {7, 5, 9, 13, 11, 15};
  return kTypes[marker];
}

std::string ticks(const std::vector<std::string>& names, size_t most) {
  const size_t step = (names.size() + most - 1) / std::max<size_t>(most, 1);
  std::string out = "(";
  for (size_t i = 0; i < names.size(); i += std::max<size_t>(step, 1)) {
    out += fmt::format("{}{} {}", i ? ", " : "", quote(names[i]), i);
  }
  return out + ")";
}

}  // namespace attnres::gnuplot
