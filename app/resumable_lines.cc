#include "app/resumable_lines.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>

#include "app/options.h"
#include "attnres/support/error.h"

namespace attnres {
namespace {

// Makes the folder before the lock is taken in it.
const std::filesystem::path& with_folder(const std::filesystem::path& file) {
  if (file.has_parent_path()) make_folder(file.parent_path());
  return file;
}

}  // namespace

ResumableLines::ResumableLines(const std::filesystem::path& file, const Json& of)
    : file_(file), part_(file.string() + ".part"), lock_(with_folder(file)) {
  require_new("--out", file_, "file");
  const std::string first_line = Json{{"results_of", of}}.dump() + "\n";
  const bool begun = path_exists(part_);
  if (begun) read_part(first_line);
  descriptor_ = ::open(part_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  require(descriptor_ >= 0, "{}: {}", part_.string(), write_error(errno));
  if (!begun || std::filesystem::file_size(part_) == 0) append(first_line);
}

ResumableLines::~ResumableLines() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

// Keeps whole lines, "NUMBER JSON" each.
void ResumableLines::read_part(const std::string& first_line) {
  const std::string text = read_file(part_);
  const size_t whole = text.rfind('\n') + 1;  // 0 where there is none
  if (whole == 0) {
    std::filesystem::resize_file(part_, 0);
    return;
  }
  require(text.starts_with(first_line),
          "{}: holds results of other prompts or settings; give those again to go on, or remove it",
          part_.string());
  for (size_t at = first_line.size(); at < whole;) {
    const size_t end = text.find('\n', at), space = text.find(' ', at);
    lines_[std::stoll(text.substr(at, space - at))] = text.substr(space + 1, end - space - 1);
    at = end + 1;
  }
  std::filesystem::resize_file(part_, whole);
}

void ResumableLines::append(const std::string& line) {
  const int error = write_all(descriptor_, line.data(), line.size());
  require(error == 0, "{}: {}", part_.string(), write_error(error));
}

void ResumableLines::add(int64_t number, const std::string& line) {
  append(std::to_string(number) + " " + line + "\n");
  lines_[number] = line;
}

void ResumableLines::finish() {
  std::string text;
  for (const auto& [number, line] : lines_) text += line + "\n";
  write_file(file_, text);
  std::filesystem::remove(part_);
}

}  // namespace attnres
